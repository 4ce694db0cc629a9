"""Keep only the outputs of the op before, and recompute everything else: little memory, at any cost.

*Published*: the strategy "checkpoint last node" of the code released with Jain et al. 2020 (the repository
``parasj/checkmate``), the opposite extreme of keep-all. In the paper's matrices, stage t retains the
one value of op t − 1, S[t, t − 1] = 1 and nothing else, and R is the least that allows it: op t is preceded
by all of its ancestors that are missing. On a chain that is the least memory, at quadratic cost; with skip
edges, a recomputation holds several tensors at once, and other rules may need less.

*Ours*: graph outputs, and the outputs of ops that may run only once, are kept from when they are made: the
former are needed at the end, the latter can't be recomputed. Of an op with several outputs, all are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from checkmate.heuristics.selection import cheapest
from checkmate.model.graph import DFGraph
from checkmate.problem.deadline import Deadline
from checkmate.problem.problem import Problem
from checkmate.problem.solution import Solution

__all__ = ["CheckpointLast"]

_MOST_COMPUTES = 2_000_000
"""The longest schedule that is built: a chain of 2000 ops has one of this length."""
_WRITING = 0.25
"""Share of the time limit for building the schedule; the rest is for judging it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLast:
    """One schedule for every budget; the answer is unknown if it does not fit, or is too long.

    >>> chain = DFGraph.from_nodes(cost=[1] * 4, size=[1] * 4, deps=[[], [0], [1], [0, 2]])
    >>> CheckpointLast().solve(Problem(graph=chain, budget=3)).schedule.sequence
    array([0, 1, 2, 0, 3])
    """

    def solve(self, problem: Problem) -> Solution:
        """The schedule if its peak is within the budget, else unknown (infeasible below the floor)."""
        return cheapest(problem, _sequences(problem))


def _sequences(problem: Problem) -> Iterator[list[int]]:
    """The schedule, unless it is too long."""
    graph, deadline = problem.graph, Deadline(_WRITING * problem.time_limit)
    lasting = set(graph.inputs).union(graph.outputs)
    lasting.update(t for op in graph.ops if not op.recomputable for t in op.outputs)
    resident = set(graph.inputs)
    sequence: list[int] = []
    passing: set[int] = set()
    for v, op in enumerate(graph.ops):
        sequence += [*_again(graph, v, resident), v]
        if len(sequence) > _MOST_COMPUTES or deadline.passed:
            return
        resident -= passing
        resident.update(op.outputs)
        passing = set(op.outputs) - lasting
    yield sequence


def _again(graph: DFGraph, v: int, resident: set[int]) -> list[int]:
    """The ops that recompute the inputs of op v and their own inputs, in base order."""
    ops: set[int] = set()
    stack = list(graph.ops[v].inputs)
    while stack:
        t = stack.pop()
        maker = int(graph.producer[t])
        if t not in resident and maker not in ops:
            ops.add(maker)
            stack += graph.ops[maker].inputs
    return sorted(ops)

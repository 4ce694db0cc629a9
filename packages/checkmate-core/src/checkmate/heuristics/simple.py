"""Solvers that know one schedule, and the choice among several.

Checkpoint last keeps only the outputs of the op before, and recomputes everything else: little memory, at any
cost.

*Published*: the strategy "checkpoint last node" of the code released with Jain et al. 2020 (the repository
``parasj/checkmate``), the opposite extreme of keep-all. In the paper's matrices, stage t retains the
one value of op t − 1, S[t, t − 1] = 1 and nothing else, and R is the least that allows it: op t is preceded
by all of its ancestors that are missing. On a chain that is the least memory, at quadratic cost; with skip
edges, a recomputation holds several tensors at once, and other rules may need less.

*Ours*: graph outputs are kept from when they are made, as they are needed at the end; so are outputs of ops
that may run only once, as they can't be recomputed. Of an op with several outputs, all are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from checkmate.analysis import floor
from checkmate.model.graph import DFGraph
from checkmate.model.schedule import Schedule
from checkmate.problem.deadline import Deadline
from checkmate.problem.problem import Problem, keep_all_peak
from checkmate.problem.solution import Solution
from checkmate.simulate import Timeline, simulate

__all__ = ["CheckpointLast", "KeepAll", "PlainOrder", "cheapest"]


_MOST_COMPUTES = 2_000_000
"""Longest schedule that is built, in computes: the schedule of a chain of 2000 ops is about this long."""
_WRITING = 0.25
"""Share of the time limit for building the schedule; the rest is for judging it."""


def cheapest(problem: Problem, sequences: Iterable[Sequence[int]], *, first: bool = False) -> Solution:
    """Judge each op sequence, freed as early as is legal; return the cheapest that fits.

    Among equally cheap ones the lowest peak wins, then the first; with ``first``, the first that fits is
    returned. If none fits: infeasible below the proved floor of the graph, else unknown.

    >>> from checkmate.model.graph import DFGraph
    >>> graph = DFGraph.from_nodes(cost=[1, 1], size=[4, 2], deps=[[], [0]])
    >>> cheapest(Problem(graph=graph, budget=6), [[0, 0, 1], [0, 1]]).cost
    2.0
    """
    graph = problem.graph
    if problem.budget < floor(graph).size:
        return Solution.infeasible(problem)
    best: tuple[float, int] | None = None
    chosen: Timeline | None = None
    for sequence in sequences:
        timeline = simulate(graph, Schedule.from_sequence(graph, sequence))
        rank = (timeline.cost, timeline.peak)
        if timeline.peak <= problem.budget and (best is None or rank < best):
            best, chosen = rank, timeline
            if first:
                break
    return Solution.unknown(problem) if chosen is None else Solution.found(problem, chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepAll:
    """The base order without recomputation, which is optimal if it fits.

    >>> from checkmate.model.graph import DFGraph
    >>> graph = DFGraph.from_nodes(cost=[1, 1], size=[4, 2], deps=[[], [0]])
    >>> KeepAll().solve(Problem(graph=graph, budget=6)).peak
    6
    """

    def solve(self, problem: Problem) -> Solution:
        """The base order if its peak is within the budget, else unknown (infeasible below the floor)."""
        fits = keep_all_peak(problem.graph) <= problem.budget
        return cheapest(problem, [range(problem.graph.n_ops)] if fits else [])


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainOrder:
    """One order of one graph's ops, without recomputation: optimal if it fits.

    A base order with updates of parameters as early as possible
    (:func:`~checkmate.analysis.with_writes_settled`) may need more memory than the program. If only the base
    order exceeds a budget, the program's order is optimal. Budgets given as shares are shares of its peak.

    Attributes:
        order: every op of the graph once.

    >>> graph = DFGraph.from_nodes(cost=[1, 1, 1], size=[4, 4, 1], deps=[[], [], [0]])
    >>> plain = PlainOrder(order=(0, 2, 1))
    >>> plain.peak(graph), plain.solve(Problem(graph=graph, budget=8)).status
    (5, <Status.OPTIMAL: 'optimal'>)
    """

    order: tuple[int, ...]

    def peak(self, graph: DFGraph) -> int:
        """The peak of this order, in bytes.

        Raises:
            InvalidScheduleError: if an op comes before a producer of its inputs, or an op is missing.
        """
        return simulate(graph, Schedule.from_sequence(graph, self.order)).peak

    def solve(self, problem: Problem) -> Solution:
        """This order if its peak is within the budget, else unknown (infeasible below the floor)."""
        return cheapest(problem, [self.order])


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

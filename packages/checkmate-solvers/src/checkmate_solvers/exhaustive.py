"""Exhaustive search for small graphs: A* from the end of a schedule to its beginning.

A state is a moment of a schedule: the *live* tensors, which the runs after it still need, and the *due* ops,
which have to run before it. At the end, the graph's outputs are live, and all needed ops are due. The last
run before a state may be of any due op that makes a live tensor. Before this run, its inputs are live
instead of its outputs; the op is due no more if no other due op needs it. With the base order fixed, the due
ops are always the first ones, and the last of them may run even if none of its outputs is live.

All due ops run at least once. Their costs are a lower bound on what is still to pay, so the first state
without due ops that the search reaches is the optimum (Hart, Nilsson and Raphael, "A formal basis for the
heuristic determination of minimum cost paths", IEEE Transactions on Systems Science and Cybernetics 4(2),
1968). If the search is stopped earlier, the least estimate of an open state is a bound.

A run whose inputs are live anyway only takes tensors away. If it costs nothing, or its op is due no more, a
schedule in which it is earlier can be changed for one in which it comes last. Then only this run is tried.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from checkmate import Problem
from checkmate.analysis import needed_ops
from checkmate.solving import NEVER, Deadline

__all__ = ["Search", "exhaust"]

_LOOK = 256
"""States that are searched between two looks at the clock."""


class Search(NamedTuple):
    """The result of an exhaustive search.

    Attributes:
        sequence: the ops of a cheapest schedule, with repeats; None if none below the ceiling was found.
        bound: lower bound on the cost of every schedule, at most the ceiling; infinite if none exists.
    """

    sequence: list[int] | None
    bound: float


class _State(NamedTuple):
    """A moment of a schedule: live tensors and due ops, as bits."""

    live: int
    due: int


def exhaust(
    problem: Problem,
    *,
    ceiling: float = math.inf,
    any_cost: bool = False,
    states: int,
    deadline: Deadline = NEVER,
) -> Search:
    """Find the cheapest schedule if it costs less than the ceiling, or a lower bound on its cost.

    A problem of n ops has about 2ⁿ states, of which at most ``states`` are looked at. With ``any_cost``, all
    ops cost 0: any schedule will do.

    >>> from checkmate.generators import chain
    >>> search = exhaust(Problem(graph=chain(4), budget=4), states=10_000)
    >>> len(search.sequence), search.bound
    (11, 11.0)
    """
    rules = _Rules(problem, any_cost=any_cost)
    if problem.budget < problem.graph.base_size:
        return Search(None, math.inf)
    end = rules.end
    paid, came = {end: 0.0}, dict[_State, tuple[_State, int]]()
    heap = [(rules.cost(end.due), 0, end)]
    closed: set[_State] = set()
    while heap:
        estimate, _, state = heapq.heappop(heap)
        if not state.due:
            ops: list[int] = []
            while state in came:
                state, v = came[state]
                ops.append(v)
            return Search(ops, estimate)
        if state in closed:
            continue
        if len(closed) >= states or (len(closed) % _LOOK == 0 and deadline.passed):
            return Search(None, min(estimate, ceiling))
        closed.add(state)
        for op, before in rules.runs(state):
            cost = paid[state] + op.cost
            if cost < paid.get(before, math.inf) and (total := cost + rules.cost(before.due)) < ceiling:
                paid[before], came[before] = cost, (state, op.index)
                closed.discard(before)
                heapq.heappush(heap, (total, -len(paid), before))
    return Search(None, ceiling)


@dataclass(frozen=True, slots=True)
class _Op:
    """An op, with sets of tensors and of ops as bits."""

    index: int  # in the graph
    bit: int  # 1 << its place among the needed ops
    cost: float  # of one run
    reads: int  # the tensors that it reads
    makes: int  # the tensors that it makes
    readers: int  # the ops that read one of ``makes``
    stays: int  # tensors of ``reads`` that it does not reuse, so that they are held while it runs
    bytes: int  # of all outputs and the workspace
    again: bool  # whether it may run more than once


class _Rules:
    """Which runs a problem allows from a state backwards, and what they cost."""

    def __init__(self, problem: Problem, *, any_cost: bool) -> None:
        graph, sizes = problem.graph, [tensor.size for tensor in problem.graph.tensors]
        places = {v: place for place, v in enumerate(np.flatnonzero(needed_ops(graph)).tolist())}
        self._ops = [
            _Op(
                index=v,
                bit=1 << place,
                cost=0.0 if any_cost else float(graph.ops[v].cost),
                reads=_bits(graph.ops[v].inputs),
                makes=_bits(graph.ops[v].outputs),
                readers=_bits(
                    {places[r] for t in graph.ops[v].outputs for r in graph.readers.row(t) if r in places}
                ),
                stays=_bits({*graph.ops[v].inputs} - {*graph.ops[v].reuses}),
                bytes=sum(sizes[t] for t in graph.ops[v].outputs) + graph.ops[v].workspace,
                again=graph.ops[v].recomputable,
            )
            for v, place in places.items()
        ]
        self._room = problem.budget - graph.fixed_size
        self._fixed_order = problem.fixed_order
        self._size = cache(lambda tensors: sum(sizes[t] for t in _members(tensors)))
        self.cost = cache(lambda due: sum(self._ops[place].cost for place in _members(due)))
        self.end = _State(_bits({*graph.outputs, *graph.inputs}), (1 << len(self._ops)) - 1)

    def runs(self, state: _State) -> list[tuple[_Op, _State]]:
        """The ops that may run last before this moment, each with the moment before its run."""
        live, due = state
        found: list[tuple[_Op, _State]] = []
        for op in self._ops:
            last = self._fixed_order and due < 2 * op.bit
            if not op.bit & due or not (op.makes & live or last):
                continue
            kept = live & ~op.makes
            ended = last or not (self._fixed_order or op.readers & due)
            if not (ended or op.again) or self._size(kept | op.stays) + op.bytes > self._room:
                continue
            before = _State(kept | op.reads, due & ~op.bit if ended else due)
            if not op.reads & ~live and (ended or op.cost == 0):
                return [(op, before)]
            found.append((op, before))
        return found


def _bits(members: Iterable[int]) -> int:
    return sum(1 << i for i in members)


def _members(bits: int) -> Iterator[int]:
    while bits:
        yield (bits & -bits).bit_length() - 1
        bits &= bits - 1

"""Exhaustive search for small graphs: A* over the sets of tensors that are resident.

A state is the set of resident tensors, and which ops have run, as far as that matters: for ops that run only
once, and for the base order. From a state any op may run whose inputs are resident; before it, or with it if
it reuses them, a set of tensors is freed that makes room for it and of which no member can stay. That loses
no optimum: a tensor that is resident can be freed later.

Every op that makes a missing tensor which a graph output needs, directly or through other missing tensors,
still has to run. Their costs are a lower bound on what is to come, so the first complete state that the
search reaches is the optimum (Hart, Nilsson and Raphael, "A formal basis for the heuristic determination of
minimum cost paths", IEEE Transactions on Systems Science and Cybernetics 4(2), 1968). If it is stopped
before, the least estimate of an open state is a bound.
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
"""States between two looks at the clock."""


class Search(NamedTuple):
    """The result of an exhaustive search.

    Attributes:
        sequence: the ops of a cheapest schedule, with repeats; None if none below the ceiling was found.
        bound: no schedule costs less, except for those from the ceiling on; infinite if there is none.
    """

    sequence: list[int] | None
    bound: float


class _State(NamedTuple):
    """Resident tensors and ops that have run, as bits; the latter only where the past matters."""

    resident: int
    ran: int


def exhaust(
    problem: Problem, *, ceiling: float = math.inf, states: int, deadline: Deadline = NEVER
) -> Search:
    """Find the cheapest schedule.

    Args:
        problem: the question; 2ⁿ states with n ops, and more if the order is fixed.
        ceiling: the cost of a known schedule; only cheaper ones are looked for.
        states: the most states to look at.
        deadline: stop when it has passed.

    >>> from checkmate.generators import chain
    >>> search = exhaust(Problem(graph=chain(4), budget=4), states=10_000)
    >>> len(search.sequence), search.bound
    (11, 11.0)
    """
    rules = _Rules(problem)
    start = rules.start
    if problem.budget < problem.graph.base_size:
        return Search(None, math.inf)
    paid, came = {start: 0.0}, dict[_State, tuple[_State, int]]()
    heap = [(rules.remaining(start), 0, start)]
    closed: set[_State] = set()
    while heap:
        estimate, _, state = heapq.heappop(heap)
        if rules.is_complete(state):
            return Search(_path(came, state), estimate)
        if state in closed:
            continue
        if len(closed) >= states or (len(closed) % _LOOK == 0 and deadline.passed):
            return Search(None, min(estimate, ceiling))
        closed.add(state)
        for op, after in rules.moves(state):
            cost = paid[state] + rules.costs[op]
            if cost < paid.get(after, math.inf) and (total := cost + rules.remaining(after)) < ceiling:
                paid[after], came[after] = cost, (state, op)
                closed.discard(after)
                heapq.heappush(heap, (total, -len(paid), after))
    return Search(None, ceiling)


def _path(came: dict[_State, tuple[_State, int]], state: _State) -> list[int]:
    ops: list[int] = []
    while state in came:
        state, op = came[state]
        ops.append(op)
    return ops[::-1]


@dataclass(frozen=True, slots=True)
class _Op:
    """An op on sets of tensors as bits.

    Attributes:
        index: in the graph.
        bit: its own.
        before: the ops that must have run before its first run; none if the order is free.
        reads, makes: tensors.
        stays: those of ``reads`` that are held while it runs, as it does not reuse them.
        bytes: of all outputs and the workspace.
        again: whether it may run more than once.
    """

    index: int
    bit: int
    before: int
    reads: int
    makes: int
    stays: int
    bytes: int
    again: bool


class _Rules:
    """What may happen in a problem, and what it costs."""

    def __init__(self, problem: Problem) -> None:
        graph = problem.graph
        self.costs = [float(op.cost) for op in graph.ops]
        self._sizes = [tensor.size for tensor in graph.tensors]
        needed = np.flatnonzero(needed_ops(graph)).tolist()
        self._ops = [
            _Op(
                index=v,
                bit=1 << v,
                before=_bits(needed[:i]) if problem.fixed_order else 0,
                reads=_bits(graph.ops[v].inputs),
                makes=_bits(graph.ops[v].outputs),
                stays=_bits({*graph.ops[v].inputs} - {*graph.ops[v].reuses}),
                bytes=sum(self._sizes[t] for t in graph.ops[v].outputs) + graph.ops[v].workspace,
                again=graph.ops[v].recomputable,
            )
            for i, v in enumerate(needed)
        ]
        self._room = problem.budget - graph.fixed_size
        self._fixed_order = problem.fixed_order
        self._outputs, self._inputs = _bits(graph.outputs), _bits(graph.inputs)
        self._held = cache(lambda resident: sum(self._sizes[t] for t in _members(resident)))
        self.start = _State(self._inputs, 0)

    def is_complete(self, state: _State) -> bool:
        return self._outputs & ~state.resident == 0

    def remaining(self, state: _State) -> float:
        """Cost of the ops that still have to run, at least; infinite if one of them can't."""
        resident, ran = state
        missing, total = self._outputs & ~resident, 0.0
        for op in reversed(self._ops):
            first = not ran & op.bit
            if op.makes & missing or (first and self._fixed_order):
                if not first and not op.again:
                    return math.inf
                total += self.costs[op.index]
                missing |= op.reads & ~resident
        return total

    def moves(self, state: _State) -> Iterator[tuple[int, _State]]:
        """The ops that may run, each with every state that it can lead to."""
        resident, ran = state
        for op in self._ops:
            first = not ran & op.bit
            if (
                op.reads & ~resident
                or not op.makes & ~resident
                or op.before & ~ran
                or not (first or op.again)
            ):
                continue
            kept = resident & ~op.makes  # older copies of its outputs end with the run: free them before
            excess = self._held(kept) + op.bytes - self._room
            after = ran | op.bit if self._fixed_order or not op.again else ran
            for freed in self._frees(kept & ~op.stays & ~self._inputs, excess):
                yield op.index, _State(kept & ~freed | op.makes, after)

    def _frees(self, tensors: int, excess: int) -> Iterator[int]:
        """The sets of these tensors that hold ``excess`` bytes or more, and without any member do not."""
        if excess <= 0:
            yield 0
            return
        largest_first = sorted(
            filter(self._sizes.__getitem__, _members(tensors)), key=lambda t: -self._sizes[t]
        )
        open_sets = [(0, 0, excess, self._held(tensors))]
        while open_sets:
            chosen, at, lacking, rest = open_sets.pop()
            if lacking <= 0:  # the last member is the smallest, and the set lacks bytes without it
                yield chosen
            elif rest >= lacking:
                t = largest_first[at]
                open_sets.append((chosen, at + 1, lacking, rest - self._sizes[t]))
                open_sets.append((chosen | 1 << t, at + 1, lacking - self._sizes[t], rest - self._sizes[t]))


def _bits(members: Iterable[int]) -> int:
    return sum(1 << i for i in members)


def _members(bits: int) -> Iterator[int]:
    while bits:
        yield (bits & -bits).bit_length() - 1
        bits &= bits - 1

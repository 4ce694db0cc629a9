"""The exhaustive oracle: the true optimum of a tiny problem, by A* over all sets of resident tensors.

A state is (the resident tensors, the ops that may no longer run). A move frees some tensors, also inputs that
the op reuses, and computes one op. Three facts keep the search small without losing an optimum:

- More resident tensors are never worse, since tensors can be freed at no cost. So a move frees an
  inclusion-minimal set that makes room for its op, or nothing.
- Past runs matter only for ops that run once only and, with a fixed order, for the next first run.
- Every op on a path from resident tensors to a missing output must still run. Their cost is a lower bound on
  the remaining cost that shrinks by at most the cost of the op that runs (a consistent heuristic), so the
  first goal that leaves the queue is optimal (Hart, Nilsson, Raphael 1968).

With n ops that make one tensor each there are at most 2ⁿ states, 2ⁿ·n with a fixed order, and from each up
to n · C(n, n/2) moves. Up to about 14 ops it takes milliseconds, rarely a second.

It shares no code with the judge or with any solver.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from checkmate.model.graph import DFGraph
from checkmate.model.schedule import Schedule
from checkmate.problem.problem import Problem

__all__ = ["cheapest_schedule", "optimum"]


def optimum(problem: Problem) -> float:
    """Cost of the cheapest schedule within the budget; infinite if there is none.

    >>> graph = DFGraph.from_nodes(cost=[5, 1, 1, 1], size=[1] * 4, deps=[[], [], [1], [0, 2]])
    >>> optimum(Problem(graph=graph, budget=3)), optimum(Problem(graph=graph, budget=2))
    (8.0, inf)
    """
    return _search(problem)[0]


def cheapest_schedule(problem: Problem) -> Schedule | None:
    """A cheapest schedule within the budget; None if there is none.

    >>> graph = DFGraph.from_nodes(cost=[5, 1, 1], size=[1, 1, 1], deps=[[], [0], [0, 1]])
    >>> cheapest_schedule(Problem(graph=graph, budget=3)).sequence.tolist()
    [0, 1, 2]
    """
    sequence = _search(problem)[1]
    return None if sequence is None else Schedule.from_sequence(problem.graph, sequence)


_State = tuple[int, int]
"""Bits of the resident tensors; bits of the ops that ran: run-once ops, or with a fixed order all ops."""


@lru_cache(maxsize=4096)
def _search(problem: Problem) -> tuple[float, tuple[int, ...] | None]:
    world = _World(problem)
    start: _State = (_mask(problem.graph.inputs), 0)
    if world.held(start[0]) > problem.budget:
        return math.inf, None
    paid: dict[_State, float] = {start: 0.0}
    came: dict[_State, tuple[_State, int]] = {}
    heap = [(world.still(*start), 0, start)]
    ticket = itertools.count(1)
    done: set[_State] = set()
    while heap:
        _, _, state = heapq.heappop(heap)
        if state[0] & world.goal == world.goal:
            return paid[state], _path(came, state)
        if state in done:
            continue
        done.add(state)
        for op, following in world.moves(*state):
            cost = paid[state] + world.costs[op]
            rest = world.still(*following)
            if math.isfinite(rest) and cost < paid.get(following, math.inf):
                paid[following] = cost
                came[following] = (state, op)
                done.discard(following)
                heapq.heappush(heap, (cost + rest, -next(ticket), following))
    return math.inf, None


def _path(came: dict[_State, tuple[_State, int]], state: _State) -> tuple[int, ...]:
    ops: list[int] = []
    while state in came:
        state, op = came[state]
        ops.append(op)
    return tuple(reversed(ops))


@dataclass(slots=True)
class _World:
    """The rules of one problem, on sets as bits."""

    problem: Problem
    sizes: list[int] = field(init=False)
    costs: list[float] = field(init=False)
    needed: list[int] = field(init=False)
    reads: list[int] = field(init=False)
    makes: list[int] = field(init=False)
    stays: list[int] = field(init=False)
    goal: int = field(init=False)
    pinned: int = field(init=False)

    def __post_init__(self) -> None:
        graph = self.problem.graph
        self.sizes = [t.size for t in graph.tensors]
        self.costs = [float(op.cost) for op in graph.ops]
        self.needed = _needed(graph)
        self.reads = [_mask(op.inputs) for op in graph.ops]
        self.makes = [_mask(op.outputs) for op in graph.ops]
        self.stays = [_mask(tuple({*op.inputs} - {*op.reuses})) for op in graph.ops]
        self.goal = _mask(graph.outputs)
        self.pinned = _mask(graph.inputs)

    def held(self, resident: int) -> int:
        return self.problem.graph.fixed_size + sum(self.sizes[t] for t in _bits(resident))

    def still(self, resident: int, ran: int) -> float:
        """A lower bound on the remaining cost: the ops between resident tensors and missing outputs."""
        graph, missing, total = self.problem.graph, self.goal & ~resident, 0.0
        for v in reversed(self.needed):
            ran_before = ran >> v & 1
            if self.makes[v] & missing or (self.problem.fixed_order and not ran_before):
                if ran_before and not graph.ops[v].recomputable:
                    return math.inf
                total += self.costs[v]
                missing |= self.reads[v] & ~resident
        return total

    def runnable(self, resident: int, ran: int) -> Iterator[int]:
        """The ops whose inputs are resident, that make a missing tensor, and that may run (again) now."""
        upcoming = next((v for v in self.needed if not ran >> v & 1), -1)
        for v in self.needed:
            again = ran >> v & 1
            ready = not self.reads[v] & ~resident and self.makes[v] & ~resident
            in_turn = again or v == upcoming or not self.problem.fixed_order
            if ready and in_turn and (self.problem.graph.ops[v].recomputable or not again):
                yield v

    def moves(self, resident: int, ran: int) -> Iterator[tuple[int, _State]]:
        """Every op that may run now, after every minimal set of frees that makes room for it."""
        for v in self.runnable(resident, ran):
            op = self.problem.graph.ops[v]
            others = resident & ~self.makes[v]  # its older outputs would be dropped: free them before
            fresh = sum(self.sizes[t] for t in op.outputs)
            excess = self.held(others) + fresh + op.workspace - self.problem.budget
            remembers = self.problem.fixed_order or not op.recomputable
            after = ran | 1 << v if remembers else ran
            movable = [t for t in _bits(others & ~self.stays[v] & ~self.pinned) if self.sizes[t]]
            for freed in _minimal(movable, self.sizes, excess):
                yield v, ((others & ~freed) | self.makes[v], after)


def _minimal(movable: list[int], sizes: list[int], excess: int) -> Iterator[int]:
    """The inclusion-minimal sets of tensors, as bits, that hold at least ``excess`` bytes."""
    if excess <= 0:
        yield 0
        return
    order = sorted(movable, key=lambda t: -sizes[t])
    rest = [0, *itertools.accumulate(sizes[t] for t in reversed(order))][::-1]

    def extend(k: int, chosen: int, lacking: int) -> Iterator[int]:
        """Largest tensors first: a set is minimal if it is too small without its last, smallest member."""
        if lacking <= 0:
            yield chosen
        elif rest[k] >= lacking:
            yield from extend(k + 1, chosen | 1 << order[k], lacking - sizes[order[k]])
            yield from extend(k + 1, chosen, lacking)

    yield from extend(0, 0, excess)


def _needed(graph: DFGraph) -> list[int]:
    """The ancestors of the graph outputs, in base order."""
    wanted, needed = set(graph.outputs), []
    for v in reversed(range(graph.n_ops)):
        if wanted & set(graph.ops[v].outputs):
            needed.append(v)
            wanted |= set(graph.ops[v].inputs)
    return needed[::-1]


def _mask(indices: tuple[int, ...]) -> int:
    return sum(1 << i for i in indices)


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low

"""The exhaustive oracle: the true optimum of a tiny problem, by Dijkstra over everything that can happen.

It shares no code with the judge or the solvers. A state is (what ran, what is resident), as bit masks; a move
computes one op or frees one tensor. With a fixed order, an op may run for the first time only when it is the
next needed one in base order.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator

import pytest
from hypothesis import settings

from checkmate import DFGraph, Problem

settings.register_profile("checkmate", derandomize=True, deadline=None)
settings.load_profile("checkmate")

State = tuple[int, int]


class Oracle:
    """Finds the cost of the cheapest schedule; infinite if there is none."""

    def optimum(self, problem: Problem) -> float:
        graph = problem.graph
        start = (0, _mask(graph.inputs))
        if _held(graph, start[1]) > problem.budget:
            return math.inf
        goal = _mask(graph.outputs)
        best: dict[State, float] = {start: 0.0}
        heap: list[tuple[float, State]] = [(0.0, start)]
        while heap:
            cost, state = heapq.heappop(heap)
            if cost > best[state]:
                continue
            if state[1] & goal == goal:
                return cost
            for extra, following in self._moves(problem, *state):
                if cost + extra < best.get(following, math.inf):
                    best[following] = cost + extra
                    heapq.heappush(heap, (cost + extra, following))
        return math.inf

    def _moves(self, problem: Problem, ran: int, resident: int) -> Iterator[tuple[float, State]]:
        graph = problem.graph
        needed = _needed(graph)
        upcoming = next((v for v in needed if not ran >> v & 1), None)
        for t in range(graph.n_tensors):
            if resident >> t & 1 and t not in graph.inputs:
                yield 0.0, (ran, resident & ~(1 << t))
        for v in needed:
            op, first = graph.ops[v], not ran >> v & 1
            made, read = _mask(op.outputs), _mask(op.inputs)
            if read & ~resident or not (first or op.recomputable):
                continue
            if first and problem.fixed_order and v != upcoming:
                continue
            fresh = sum(graph.tensors[t].size for t in op.outputs)
            if _held(graph, resident) + fresh + op.workspace <= problem.budget:
                yield op.cost, (ran | 1 << v, resident | made)


def _needed(graph: DFGraph) -> list[int]:
    wanted, needed = set(graph.outputs), []
    for v in reversed(range(graph.n_ops)):
        if wanted & set(graph.ops[v].outputs):
            needed.append(v)
            wanted |= set(graph.ops[v].inputs)
    return needed[::-1]


def _mask(indices: tuple[int, ...]) -> int:
    return sum(1 << i for i in indices)


def _held(graph: DFGraph, resident: int) -> int:
    return graph.fixed_size + sum(t.size for i, t in enumerate(graph.tensors) if resident >> i & 1)


@pytest.fixture(scope="session")
def oracle() -> Oracle:
    return Oracle()

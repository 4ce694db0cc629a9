"""The paper's space of schedules, searched exhaustively: shares no code with the programs in stages.

First runs come in base order and end the stages; within a stage ops run in base order, each at most once; a
stage more may follow the last op. A state is (stage, next op that has its turn, what is resident, how often
each op may still run again).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator

from checkmate import DFGraph, Problem

State = tuple[int, int, frozenset[int], tuple[int, ...]]
_UNLIMITED = 99


def best_in_stages(problem: Problem, most_runs: int = 0) -> float:
    """Cost of the cheapest schedule of the space; infinite if there is none.

    With ``most_runs``, of those in which no op runs more often.
    """
    graph = problem.graph
    ops = _needed(graph)
    again = tuple((most_runs - 1 if most_runs else _UNLIMITED) * op.recomputable for op in graph.ops)
    start: State = (0, 0, frozenset(graph.inputs), again)
    if _held(graph, start[2]) > problem.budget:
        return math.inf
    best = {start: 0.0}
    ticket = itertools.count()
    heap = [(0.0, next(ticket), start)]
    while heap:
        cost, _, state = heapq.heappop(heap)
        if cost > best[state]:
            continue
        if state[0] >= len(ops) and state[2].issuperset(graph.outputs):
            return cost
        for extra, following in _moves(problem, ops, state):
            if cost + extra < best.get(following, math.inf):
                best[following] = cost + extra
                heapq.heappush(heap, (cost + extra, next(ticket), following))
    return math.inf


def _moves(problem: Problem, ops: list[int], state: State) -> Iterator[tuple[float, State]]:
    stage, turn, resident, again = state
    graph = problem.graph
    if turn == len(ops):
        return
    for t in resident.difference(graph.inputs):
        yield 0.0, (stage, turn, resident - {t}, again)
    op, first = graph.ops[ops[turn]], stage == turn
    after = (stage + 1, 0) if first else (stage, turn + 1)
    if not first:
        yield 0.0, (*after, resident, again)
    fresh = sum(graph.tensors[t].size for t in op.outputs) + op.workspace
    v = ops[turn]
    runs = resident.issuperset(op.inputs) and (first or again[v] > 0)
    if runs and _held(graph, resident) + fresh <= problem.budget:
        if not first and again[v] < _UNLIMITED:
            again = (*again[:v], again[v] - 1, *again[v + 1 :])
        yield op.cost, (*after, resident.union(op.outputs), again)


def _held(graph: DFGraph, resident: frozenset[int]) -> int:
    return graph.fixed_size + sum(graph.tensors[t].size for t in resident)


def _needed(graph: DFGraph) -> list[int]:
    wanted, needed = set(graph.outputs), []
    for v in reversed(range(graph.n_ops)):
        if wanted.intersection(graph.ops[v].outputs):
            needed.append(v)
            wanted.update(graph.ops[v].inputs)
    return needed[::-1]

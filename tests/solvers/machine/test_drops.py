"""What a drop costs, and which computes it makes needless."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from checkmate import DFGraph
from checkmate_solvers.machine.arrays import ANY_BUDGET, COST, state_of
from checkmate_solvers.machine.library import search


def _graph(cost: list[float], size: list[int], deps: list[list[int]], workspace: Sequence[int]) -> DFGraph:
    graph = DFGraph.from_nodes(cost=cost, size=size, deps=deps)
    ops = (replace(op, workspace=most) for op, most in zip(graph.ops, workspace, strict=True))
    return replace(graph, ops=tuple(ops))


def _after_making_room(
    single, seen, graph: DFGraph, sequence: list[int], *, place: int, budget: int, limit: float
) -> list[int]:
    """The sequence after a drop at a place of the first block, if it costs at most ``limit`` by estimate."""
    state = state_of(graph, fixed_order=False, seed=0)
    search(state, np.array(sequence), ANY_BUDGET)
    before, (_, memory) = float(state.totals[COST]), seen(state)
    excess = memory[place] - budget
    assert excess > 0
    done = single.make_room(state, place, excess, budget, 1, limit)
    assert done or state.totals[COST] == before
    ops, _ = seen(state)
    return ops


def _kept_and_run_again(workspace: int) -> tuple[DFGraph, list[int]]:
    """Op 0 idles while op 1 runs, is read by op 2, and runs again for op 4; op 3 has a workspace."""
    deps = [[], [], [0, 1], [2], [0, 3]]
    return _graph([5, 1, 1, 1, 1], [2, 1, 1, 1, 1], deps, [0, 4, 0, workspace, 0]), [0, 1, 2, 3, 0, 4]


def test_a_later_compute_of_the_same_op_goes_if_the_budget_allows_that(single, seen) -> None:
    graph, sequence = _kept_and_run_again(workspace=0)
    ops = _after_making_room(single, seen, graph, sequence, place=1, budget=5, limit=1.0)
    assert ops == [1, 0, 2, 3, 4]


def test_it_stays_where_the_budget_does_not(single, seen) -> None:
    graph, sequence = _kept_and_run_again(workspace=3)
    ops = _after_making_room(single, seen, graph, sequence, place=1, budget=5, limit=1.0)
    assert ops == [1, 0, 2, 3, 0, 4]


def test_it_stays_where_cost_does_not_count(single, seen) -> None:
    """A repair is to fit, whatever that costs: what is held for longer may be in its way."""
    graph, sequence = _kept_and_run_again(workspace=0)
    ops = _after_making_room(single, seen, graph, sequence, place=1, budget=5, limit=math.inf)
    assert ops == [1, 0, 2, 3, 0, 4]


def test_a_chain_that_only_the_dropped_op_needed_moves_at_no_cost(single, seen) -> None:
    """Op 1 is dropped while op 2 runs; op 0, whose output only op 1 reads, runs again with it, not twice."""
    graph = _graph([5, 5, 1, 1], [3, 2, 1, 1], [[], [0], [], [1, 2]], [0, 0, 4, 0])
    ops = _after_making_room(single, seen, graph, [0, 1, 2, 3], place=2, budget=5, limit=1.0)
    assert ops == [2, 0, 1, 3]


def test_a_chain_that_others_need_is_paid_for(single, seen) -> None:
    """As above, but op 2 also reads the output of op 0, which can't be held while op 3 runs."""
    deps = [[], [0], [0], [], [1, 2, 3]]
    graph, sequence = _graph([5, 5, 1, 1, 1], [3, 2, 1, 1, 1], deps, [0, 0, 3, 4, 0]), [0, 1, 2, 3, 4]
    for limit, expected in ((1.0, sequence), (6.0, [0, 2, 3, 0, 1, 4])):
        ops = _after_making_room(single, seen, graph, sequence, place=2, budget=7, limit=limit)
        assert ops == expected

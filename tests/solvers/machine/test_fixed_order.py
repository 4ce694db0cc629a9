"""First runs that have to keep the base order: a repeat may not move to before the first run of its op."""

from __future__ import annotations

import pytest

from checkmate import DFGraph, Problem
from checkmate_solvers.local_search import LocalSearch


@pytest.mark.parametrize("seed", range(3))
def test_repeats_of_an_op_that_reads_nothing_stay_behind_its_first_run(seed: int) -> None:
    graph = DFGraph.from_nodes(cost=[1] * 5, size=[3, 2, 3, 2, 1], deps=[[], [0], [], [0], [1]])
    problem = Problem(graph=graph, budget=6, fixed_order=True, seed=seed)
    found = LocalSearch(rounds=50, patience=4).solve(problem)
    assert found.schedule is not None
    assert list(dict.fromkeys(found.schedule.sequence.tolist())) == [0, 1, 2, 3, 4]
    assert found.cost == 8

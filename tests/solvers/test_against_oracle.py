"""How near ``auto`` comes to the optimum of the exhaustive oracle; test_conformance checks its claims."""

from __future__ import annotations

import itertools

from checkmate import DFGraph, Problem
from checkmate_solvers.auto import Auto


def test_auto_is_near_the_optimum_on_most_small_training_steps(oracle) -> None:
    gaps = []
    for costs, budget in itertools.product(itertools.product((1, 3), repeat=4), (3, 4, 5)):
        reads = [[], [0], [1], [2], [3, 3], [4, 3], [5, 2], [6, 1], [7, 0]]
        graph = DFGraph.from_nodes(cost=[*costs, *reversed(costs), 1], size=[1] * 9, deps=reads)
        problem = Problem(graph=graph, budget=budget, fixed_order=True)
        optimum = oracle.optimum(problem)
        solution = Auto().solve(problem)
        assert solution.schedule is not None
        gaps.append(solution.cost / optimum - 1)
    gaps.sort()
    assert gaps[len(gaps) // 2] == 0
    assert gaps[len(gaps) * 9 // 10] <= 0.05

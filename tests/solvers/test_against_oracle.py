"""How near ``auto`` comes to the optimum of the exhaustive oracle, and that it claims nothing false.

The graphs are drawn at random, not by Hypothesis, which prefers simple ones: the shares below are of a
population.
"""

from __future__ import annotations

import itertools
import math

from checkmate import DFGraph, Problem, Status
from checkmate_solvers.auto import Auto
from checkmate_solvers.exhaustive import exhaust
from checkmate_solvers.local_search import LocalSearch
from zoo.tiny import tiny_problems

SEARCHING = Auto(local=LocalSearch(patience=8), without=("exhaustive",))
"""Solves tiny graphs in the way of large ones, with less patience."""


def test_auto_solves_every_tiny_graph_to_proof(oracle) -> None:
    for problem in tiny_problems(200, seed=0):
        optimum, solution = oracle.optimum(problem), Auto().solve(problem)
        assert solution.status is (Status.OPTIMAL if math.isfinite(optimum) else Status.INFEASIBLE)
        assert solution.cost == optimum


def test_the_search_is_optimal_on_nearly_all_tiny_graphs_and_never_far_off(oracle) -> None:
    worse: list[float] = []
    solved = 0
    for problem in tiny_problems(120, seed=0):
        optimum, solution = oracle.optimum(problem), SEARCHING.solve(problem)
        assert solution.bound <= optimum * (1 + 1e-9)
        assert (solution.status is Status.INFEASIBLE) <= math.isinf(optimum)
        assert (solution.status is Status.OPTIMAL) <= (solution.cost <= optimum * (1 + 1e-9))
        if math.isfinite(optimum):
            solved += 1
            worse += [solution.cost / optimum - 1] if solution.cost > optimum * (1 + 1e-9) else []
    assert solved >= 100
    assert len(worse) <= 0.03 * solved
    assert max(worse, default=0) <= 0.02


def test_all_small_training_steps_with_skips_are_solved_to_the_optimum(oracle) -> None:
    reads = [[], [0], [1], [2], [3], [4, 3], [5, 2], [6, 1], [7, 0]]
    for costs, budget in itertools.product(itertools.product((1, 3), repeat=4), (3, 4, 5)):
        graph = DFGraph.from_nodes(cost=[*costs, *reversed(costs), 1], size=[1] * 9, deps=reads)
        problem = Problem(graph=graph, budget=budget, fixed_order=True)
        assert SEARCHING.solve(problem).cost == oracle.optimum(problem)


def test_exhaustive_search_and_the_other_steps_agree_on_larger_graphs() -> None:
    for problem in tiny_problems(10, seed=0, ops=(15, 40)):
        exact, searched = exhaust(problem, states=20_000), SEARCHING.solve(problem)
        assert exact.sequence is not None or math.isinf(exact.bound)
        assert searched.bound <= exact.bound * (1 + 1e-9)
        assert searched.cost >= exact.bound * (1 - 1e-9)

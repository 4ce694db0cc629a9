"""Two-phase rounding: the laws of solvers, and what repair adds to what the paper does."""

from __future__ import annotations

import pytest
from hypothesis import given

from checkmate import Problem, Status, keep_all_peak
from checkmate.generators import chain, unet
from checkmate.testing import SolverConformance
from checkmate.testing.strategies import problems, training_steps
from checkmate_solvers.literature.lp_rounding import LpRounding


class TestLpRounding(SolverConformance):
    solver_name = "lp-rounding"
    examples = 12


@pytest.mark.parametrize(("budget", "best"), [(4, 26), (5, 22), (6, 21), (8, 19)])
def test_the_bound_of_the_chain_is_its_optimum(budget: int, best: int) -> None:
    solution = LpRounding().solve(Problem(graph=chain(8), budget=budget))
    assert solution.bound == best
    assert best <= solution.cost <= 1.15 * best


def test_repair_finds_a_schedule_where_no_rounding_fits() -> None:
    graph = unet(2)
    problem = Problem(graph=graph, budget=keep_all_peak(graph) // 2, fixed_order=True, time_limit=60)
    published = LpRounding(repair=False, margins=(0.0,)).solve(problem)
    repaired = LpRounding(margins=(0.0,)).solve(problem)
    assert published.status is Status.UNKNOWN
    assert repaired.schedule is not None
    assert repaired.origin["schedule"].startswith("lp-rounding")


@given(problem=problems(training_steps(max_layers=3), fixed_order=True))
def test_more_ways_to_round_never_cost_more(problem: Problem) -> None:
    deterministic = LpRounding(margins=(0.0,), thresholds=0, samples=0, repair=False)
    published = LpRounding(thresholds=0, repair=False)
    costs = [solver.solve(problem).cost for solver in (LpRounding(), published, deterministic)]
    assert costs == sorted(costs)


def test_the_seed_decides() -> None:
    problem = Problem(graph=chain(8), budget=5, seed=3)
    assert LpRounding().solve(problem).schedule == LpRounding().solve(problem).schedule

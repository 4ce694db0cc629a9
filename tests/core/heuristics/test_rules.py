"""Keep-all, Chen √n, first fit, the best of all: laws on random graphs, known answers on chains."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate import DFGraph, Problem, Schedule, Status, floor, keep_all_peak, simulate
from checkmate.heuristics import BestHeuristic, ChenSqrtN, FirstFit, KeepAll
from checkmate.heuristics.selection import cheapest
from checkmate.plugins import Solver
from checkmate.testing.strategies import graphs

SOLVERS: list[Solver] = [KeepAll(), ChenSqrtN(), ChenSqrtN(segment=2), FirstFit(), BestHeuristic()]


def chain(n: int) -> DFGraph:
    """n forward ops, then n backward ops; backward op i reads forward output i and the gradient before it."""
    forward = [[i - 1] if i else [] for i in range(n)]
    backward = [[n + i - 1, n - 1 - i] if i else [n - 1] for i in range(n)]
    return DFGraph.from_nodes(
        cost=[1] * 2 * n, size=[1] * 2 * n, deps=forward + backward, backward=[False] * n + [True] * n
    )


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
@settings(max_examples=80)
@given(graph=graphs(), share=st.floats(0, 1))
def test_what_a_rule_gives_is_within_the_budget(solver: Solver, graph: DFGraph, share: float) -> None:
    lowest = floor(graph).size
    budget = max(1, lowest + round(share * (keep_all_peak(graph) - lowest)))
    for fixed_order in (False, True):
        solution = solver.solve(Problem(graph=graph, budget=budget, fixed_order=fixed_order))
        assert solution.status is not Status.INFEASIBLE  # only below the floor is it proved
        if solution.schedule is not None:
            timeline = simulate(graph, solution.schedule)
            assert timeline.peak <= budget
            assert solution.bound <= timeline.cost
        if budget >= keep_all_peak(graph):
            assert solution.cost <= graph.ideal_cost * (1 + 1e-12)


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_below_the_floor_is_infeasible(solver: Solver) -> None:
    assert solver.solve(Problem(graph=chain(4), budget=2)).status is Status.INFEASIBLE


@pytest.mark.parametrize("n", [16, 64, 144])
def test_chen_keeps_two_roots_and_pays_less_than_one_more_forward_pass(n: int) -> None:
    graph, root = chain(n), math.isqrt(n)
    problem = Problem(graph=graph, budget=2 * root)
    solution = ChenSqrtN(segment=root).solve(problem)
    assert (solution.peak, solution.cost) == (2 * root, 2 * n + (n - root))
    assert ChenSqrtN().solve(problem).cost <= solution.cost


def test_chens_sweep_takes_the_cheapest_segment_that_fits() -> None:
    graph = chain(36)
    costs = [
        ChenSqrtN().solve(Problem(graph=graph, budget=b)).cost for b in range(13, keep_all_peak(graph) + 1)
    ]
    assert costs == sorted(costs, reverse=True)
    assert len(set(costs)) >= 4
    assert costs[-1] == graph.ideal_cost


def test_chen_has_nothing_to_forget_without_a_backward_pass() -> None:
    graph = DFGraph.from_nodes(cost=[1, 1], size=[4, 2], deps=[[], [0]])
    assert ChenSqrtN().solve(Problem(graph=graph, budget=6)).cost == 2.0


@pytest.mark.parametrize("segment", [0, -1])
def test_a_segment_has_at_least_one_op(segment: int) -> None:
    with pytest.raises(ValueError, match="≥ 1"):
        ChenSqrtN(segment=segment)


@settings(max_examples=60)
@given(graph=graphs(), share=st.floats(0, 1))
def test_the_best_is_as_good_as_each(graph: DFGraph, share: float) -> None:
    lowest = floor(graph).size
    problem = Problem(graph=graph, budget=max(1, lowest + round(share * (keep_all_peak(graph) - lowest))))
    best = BestHeuristic().solve(problem)
    for rule in (KeepAll(), ChenSqrtN()):
        assert best.cost <= rule.solve(problem).cost * (1 + 1e-12)


def test_the_best_says_whose_schedule_it_is() -> None:
    graph = chain(8)
    assert BestHeuristic().solve(Problem(graph=graph, budget=keep_all_peak(graph))).origin == {
        "schedule": "keep-all"
    }
    assert BestHeuristic().solve(Problem(graph=graph, budget=5)).origin["schedule"] != "keep-all"


def test_among_equally_cheap_candidates_the_lowest_peak_wins() -> None:
    graph = DFGraph.from_nodes(cost=[1, 1, 1], size=[1, 5, 3], deps=[[], [], [1]], outputs=[0, 2])
    solution = cheapest(Problem(graph=graph, budget=9), [[0, 1, 2], [1, 2, 0]])
    assert solution.schedule == Schedule.from_sequence(graph, [1, 2, 0])

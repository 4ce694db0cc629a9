"""All rules: laws on random graphs. Keep-all, first fit, the best of all: known answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import DFGraph, Problem, Schedule, Status, floor, keep_all_peak, simulate
from checkmate.generators import chain
from checkmate.heuristics import BestHeuristic, CheckpointLast, ChenGreedy, ChenSqrtN, FirstFit, KeepAll
from checkmate.heuristics.simple import cheapest
from checkmate.plugins import Solver
from checkmate.testing.strategies import graphs

SWEPT: list[Solver] = [
    KeepAll(),
    ChenSqrtN(),
    ChenSqrtN(candidates="articulation"),
    ChenGreedy(),
    ChenGreedy(candidates="articulation"),
    FirstFit(),
    BestHeuristic(),
]
FIXED: list[Solver] = [ChenSqrtN(segment=2), ChenGreedy(threshold=6), CheckpointLast()]
SOLVERS = SWEPT + FIXED


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
@given(graph=graphs(), share=st.floats(0, 1))
def test_sequences_of_a_rule_are_within_the_budget(solver: Solver, graph: DFGraph, share: float) -> None:
    lowest = floor(graph).size
    budget = max(1, lowest + round(share * (keep_all_peak(graph) - lowest)))
    for fixed_order in (False, True):
        solution = solver.solve(Problem(graph=graph, budget=budget, fixed_order=fixed_order))
        assert solution.status is not Status.INFEASIBLE  # only below the floor is it proved
        if solution.schedule is not None:
            timeline = simulate(graph, solution.schedule)
            assert timeline.peak <= budget
            assert solution.bound <= timeline.cost
        if budget >= keep_all_peak(graph) and solver in SWEPT:
            assert solution.cost <= graph.ideal_cost * (1 + 1e-12)


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_an_empty_graph_has_an_empty_schedule(solver: Solver) -> None:
    solution = solver.solve(Problem(graph=DFGraph(ops=(), tensors=()), budget=1))
    assert solution.schedule == Schedule.of([])


@pytest.mark.parametrize("solver", [s for s in SOLVERS if not isinstance(s, BestHeuristic)], ids=repr)
def test_without_a_backward_pass_or_a_forward_pass_there_is_an_answer(solver: Solver) -> None:
    for backward in (False, True):
        graph = DFGraph.from_nodes(
            cost=[1, 1, 1], size=[4, 2, 1], deps=[[], [0], [1]], backward=[backward] * 3
        )
        assert solver.solve(Problem(graph=graph, budget=6)).cost == 3.0


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_below_the_floor_is_infeasible(solver: Solver) -> None:
    assert solver.solve(Problem(graph=chain(4), budget=2)).status is Status.INFEASIBLE


@given(graph=graphs(), share=st.floats(0, 1))
def test_the_best_is_as_good_as_each(graph: DFGraph, share: float) -> None:
    lowest = floor(graph).size
    problem = Problem(graph=graph, budget=max(1, lowest + round(share * (keep_all_peak(graph) - lowest))))
    best = BestHeuristic().solve(problem)
    for rule in (KeepAll(), ChenSqrtN()):
        assert best.cost <= rule.solve(problem).cost * (1 + 1e-12)


def test_the_best_names_the_rule_of_its_schedule() -> None:
    graph = chain(8)
    assert BestHeuristic().solve(Problem(graph=graph, budget=keep_all_peak(graph))).origin == {
        "schedule": "keep-all"
    }
    assert BestHeuristic().solve(Problem(graph=graph, budget=5)).origin["schedule"] != "keep-all"


def test_among_equally_cheap_candidates_the_lowest_peak_wins() -> None:
    graph = DFGraph.from_nodes(cost=[1, 1, 1], size=[1, 5, 3], deps=[[], [], [1]], outputs=[0, 2])
    solution = cheapest(Problem(graph=graph, budget=9), [[0, 1, 2], [1, 2, 0]])
    assert solution.schedule == Schedule.from_sequence(graph, [1, 2, 0])

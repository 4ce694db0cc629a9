"""The solver: conformance, known optima, the oracle, and that a seed decides the answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import DFGraph, Op, Problem, Status, Tensor, floor, keep_all_peak, simulate
from checkmate.generators import chain, random_layered, transformer
from checkmate.heuristics import BestHeuristic
from checkmate.testing import SolverConformance
from checkmate.testing.strategies import problems, training_steps
from checkmate_solvers.local_search import Cycles, LocalSearch
from checkmate_solvers.search import Incumbent, answer_easy_cases

BRIEF = LocalSearch(rounds=200, patience=4)


class TestLocalSearch(SolverConformance):
    examples = 30

    def solver(self) -> LocalSearch:
        return BRIEF


@pytest.mark.parametrize(("layers", "budget", "optimum"), [(8, 4, 26), (8, 5, 22), (16, 9, 42), (32, 17, 82)])
def test_unit_chains(layers: int, budget: int, optimum: int) -> None:
    assert BRIEF.solve(Problem(graph=chain(layers), budget=budget)).cost == optimum


@given(problem=problems(training_steps(min_layers=3)))
def test_tiny_training_steps_are_solved_to_the_optimum(oracle, problem: Problem) -> None:
    assert BRIEF.solve(problem).cost == oracle.optimum(problem)


@given(seed=st.integers(0, 2**63), fixed_order=st.booleans())
def test_the_same_seed_gives_the_same_schedule(seed: int, fixed_order: bool) -> None:
    graph = random_layered(60, seed=1)
    problem = Problem(
        graph=graph, budget=int(0.8 * keep_all_peak(graph)), seed=seed, fixed_order=fixed_order, time_limit=60
    )
    first, second = (LocalSearch(rounds=50, patience=2).solve(problem).schedule for _ in range(2))
    assert first == second


def test_an_order_that_may_change_costs_nothing_here() -> None:
    """Two interleaved branches: one after the other they fit without recomputation."""
    graph = DFGraph.from_nodes(
        cost=[1] * 5, size=[4, 4, 1, 1, 1], deps=[[], [], [0], [1], [2, 3]], outputs=[4]
    )
    problem = Problem(graph=graph, budget=6)
    assert BRIEF.solve(problem).overhead == 0
    fixed = BRIEF.solve(replace(problem, fixed_order=True))
    assert fixed.schedule is None or fixed.overhead > 0


def test_large_workspace_and_twin_outputs() -> None:
    """A norm makes one large and one small tensor, and only the small one is worth its bytes."""
    ops = (
        Op(name="a", inputs=(0,), outputs=(1,), cost=5),
        Op(name="norm", inputs=(1,), outputs=(2, 3), cost=1),
        Op(name="b", inputs=(2,), outputs=(4,), cost=5, workspace=6),
        Op(name="loss", inputs=(4,), outputs=(5,), cost=0, recomputable=False),
        Op(name="db", inputs=(5, 2), outputs=(6,), cost=5),
        Op(name="dnorm", inputs=(6, 3, 1), outputs=(7,), cost=1),
    )
    sizes = [2, 6, 6, 1, 6, 1, 6, 6]
    graph = DFGraph(
        ops=ops,
        tensors=tuple(Tensor(name=str(t), size=s) for t, s in enumerate(sizes)),
        inputs=(0,),
        outputs=(7,),
    )
    for budget in range(floor(graph).size, keep_all_peak(graph)):
        found = BRIEF.solve(Problem(graph=graph, budget=budget))
        if found.schedule is not None:
            assert simulate(graph, found.schedule).peak <= budget


def test_a_seed_that_fits_is_never_lost() -> None:
    graph = transformer(1)
    problem = Problem(graph=graph, budget=int(0.9 * keep_all_peak(graph)), time_limit=5)
    found = BRIEF.solve(problem)
    assert found.schedule is not None
    best = Incumbent(problem)
    assert not answer_easy_cases(best)
    best.keep_if_better(found.schedule.sequence.tolist(), "known")
    Cycles(LocalSearch(rounds=1, patience=1), best).run()
    assert best.cost <= found.cost or found.status is Status.OPTIMAL


def test_sequences_of_other_solvers_leave_the_starts_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """So ``auto`` takes the same way as the search alone, with the same seed."""
    graph, found, start = transformer(4), [], Cycles._start
    problem = Problem(graph=graph, budget=keep_all_peak(graph) * 6 // 10, seed=3)
    eviction = BestHeuristic().solve(problem).timeline

    def noted(cycles: Cycles, *arguments: Any) -> int:
        length = start(cycles, *arguments)
        found.append(cycles._found)
        return length

    monkeypatch.setattr(Cycles, "_start", noted)
    for others in ([], [eviction]):
        best = Incumbent(problem)
        for timeline in others:
            assert timeline is not None
            best.keep_if_better(timeline, "heuristics")
        Cycles(LocalSearch(rounds=200), best).run(4 + len(others))
    assert len(found) == 8
    assert found[:4] == found[4:]

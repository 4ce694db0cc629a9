"""The minimum budget: between the proved floor and the peak without recomputation, with a schedule."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.graphs import CHAIN

from checkmate import (
    DFGraph,
    Problem,
    Schedule,
    Solution,
    SolverError,
    floor,
    keep_all_peak,
    minimum_budget,
    simulate,
    solve,
    sweep,
)
from checkmate.generators import chain
from checkmate.heuristics import FirstFit
from checkmate.solving.api import infeasible_error
from checkmate.testing.strategies import graphs


@given(graph=graphs())
def test_the_minimum_budget_works_and_is_not_below_the_floor(graph: DFGraph) -> None:
    least = minimum_budget(graph, solver=FirstFit())
    assert least.schedule is not None
    assert least.peak == simulate(graph, least.schedule).peak
    assert floor(graph).size <= least.peak <= keep_all_peak(graph)
    assert least.problem.budget == max(least.peak, 1)
    if least.peak > 0:
        assert solve(graph, least.peak, solver="first-fit").peak == least.peak


@given(graph=graphs(max_ops=16), fixed_order=st.booleans())
def test_the_advice_of_the_error_works(graph: DFGraph, fixed_order: bool) -> None:
    refused = solve(graph, 1, solver="keep-all", fixed_order=fixed_order, throw=False)
    least = infeasible_error(refused).minimum
    assert least is not None
    schedule = minimum_budget(graph, fixed_order=fixed_order).schedule
    if least > 0:
        assert schedule is not None
        assert schedule.keeps_base_order or not fixed_order
        assert simulate(graph, schedule).peak == least


@dataclass(frozen=True)
class Descends:
    """A solver that searches for the least peak itself, without ``solve``."""

    answer: Callable[[Problem], Solution]

    def minimum_budget(self, problem: Problem) -> Solution:
        return self.answer(problem)

    def solve(self, problem: Problem) -> Solution:
        raise AssertionError("asked to solve")


def test_a_solver_that_searches_for_the_least_peak_runs_once() -> None:
    least = minimum_budget(CHAIN, solver=FirstFit())
    asked: list[Problem] = []

    def answer(problem: Problem) -> Solution:
        asked.append(problem)
        assert least.schedule is not None
        return Solution.found(problem, least.schedule)

    again = minimum_budget(CHAIN, solver=Descends(answer), time_limit=3, fixed_order=True, seed=7)
    assert (again.peak, again.problem.budget, again.solver) == (24, 24, "Descends")
    assert [(p.budget, p.time_limit, p.fixed_order, p.seed) for p in asked] == [
        (keep_all_peak(CHAIN), 3, True, 7)
    ]


def test_its_least_peak_is_judged_and_never_above_the_plain_one() -> None:
    def elsewhere(problem: Problem) -> Solution:
        other = replace(problem.graph, fixed_size=1)
        schedule = Schedule.from_sequence(other, range(8))
        return Solution.found(Problem(graph=other, budget=10**6), schedule)

    with pytest.raises(SolverError, match="another graph"):
        minimum_budget(CHAIN, solver=Descends(elsewhere))
    shrugs = Descends(lambda p: Solution.unknown(p))
    assert minimum_budget(CHAIN, solver=shrugs).peak == keep_all_peak(CHAIN)


def test_without_time_the_advice_is_to_keep_everything() -> None:
    graph = chain(7, size=3)  # a graph without known schedules
    assert minimum_budget(graph, time_limit=1e-9).peak == keep_all_peak(graph)


def test_a_budget_that_takes_all_its_time_leaves_some_for_others() -> None:
    """A bisection begins at the floor, where most solvers work until their limit and find nothing."""
    graph = chain(30)
    met = keep_all_peak(graph) * 2 // 3

    class Stubborn:
        def solve(self, problem: Problem) -> Solution:
            if problem.budget >= met:
                return FirstFit().solve(problem)
            time.sleep(problem.time_limit)
            return Solution.unknown(problem)

    least = minimum_budget(graph, solver=Stubborn(), time_limit=1).peak
    assert least is not None
    assert least < 0.9 * keep_all_peak(graph)


def test_an_invalid_graph_is_named() -> None:
    for ask in (minimum_budget, lambda graph: sweep(graph, ["60%"]), lambda graph: solve(graph, "60%")):
        with pytest.raises(TypeError, match="graph is a str, must be a DFGraph"):
            ask("graph.json")  # type: ignore[arg-type]


def test_the_minimum_of_a_chain_is_its_floor() -> None:
    assert minimum_budget(CHAIN).peak == floor(CHAIN).size == 24
    assert minimum_budget(CHAIN, solver="keep-all").peak == keep_all_peak(CHAIN)


def test_a_pause_of_the_process_does_not_end_a_bisection() -> None:
    """A garbage collection may take more CPU time than the time limit, before anything is found."""
    graph = chain(31)  # no schedule of it is known
    pauses = iter([1.5])

    class Paused:
        def solve(self, problem: Problem) -> Solution:
            if (pause := next(pauses, None)) is None:
                return FirstFit().solve(problem)
            busy_for(pause)
            return Solution.unknown(problem)

    least = minimum_budget(graph, solver=Paused(), time_limit=1).peak
    assert least is not None
    assert least < 0.75 * keep_all_peak(graph)  # a bisection that ends has all of it


def busy_for(seconds: float) -> None:
    """Use CPU time."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass

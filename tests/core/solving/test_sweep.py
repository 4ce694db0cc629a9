"""The frontier: monotone for all answers of solvers, and the same in every executor."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.graphs import CHAIN
from tests.core.solving.said import Says, shape

from checkmate import (
    BudgetError,
    DFGraph,
    Frontier,
    PluginError,
    Problem,
    Schedule,
    Solution,
    SolverError,
    Status,
    floor,
    keep_all_peak,
    simulate,
    solve,
    sweep,
)
from checkmate.heuristics import BestHeuristic, KeepAll
from checkmate.solving.sweep import SweepInterrupted
from checkmate.testing.strategies import graphs, valid_schedules

TWICE = [0, 0, *range(1, 8)]
UNSEEN = replace(CHAIN, ops=tuple(replace(op, cost=2.0) for op in CHAIN.ops))
"""A graph of which no schedule is known from other tests."""


@st.composite
def frontiers(draw: st.DrawFn) -> Frontier:
    """True answers: any schedule, for any budget that it meets; bounds below the best known cost."""
    graph = draw(graphs(max_ops=5, recomputable=True))
    answers = []
    for _ in range(draw(st.integers(0, 6))):
        timeline = simulate(graph, draw(valid_schedules(graph)))
        budget = max(1, timeline.peak + draw(st.integers(0, 6)))
        answers.append(Solution.found(Problem(graph=graph, budget=budget), timeline.schedule))
    for _ in range(draw(st.integers(0, 2))):
        budget = draw(st.integers(1, 30))
        fitting = [a.cost for a in answers if a.peak is not None and a.peak <= budget]
        problem = Problem(graph=graph, budget=budget)
        bound = draw(st.sampled_from([0.0, 0.5, 1.0])) * min(fitting, default=1.0)
        answers.append(Solution.unknown(problem, bound=bound))
    return Frontier(graph=graph, answers=tuple(draw(st.permutations(answers))))


@given(frontier=frontiers())
def test_no_answer_beats_a_point(frontier: Frontier) -> None:
    points = frontier.points
    assert not frontier.errors
    peaks, costs = [point.peak for point in points], [point.cost for point in points]
    assert peaks == sorted(set(peaks))  # type: ignore[type-var]
    assert costs == sorted(set(costs), reverse=True)
    for answer in frontier.answers:
        if answer.peak is not None:
            assert any(point.peak <= answer.peak and point.cost <= answer.cost for point in points)  # type: ignore[operator]
    for point in points:
        assert point.schedule is not None
        replay = simulate(frontier.graph, point.schedule)
        assert (replay.peak, replay.cost) == (point.peak, point.cost)
        assert point.problem.budget == max(replay.peak, 1)
        assert any(answer.schedule == point.schedule for answer in frontier.answers)


@given(frontier=frontiers(), budgets=st.tuples(st.integers(1, 40), st.integers(1, 40)))
def test_more_bytes_never_cost_more(frontier: Frontier, budgets: tuple[int, int]) -> None:
    small, large = (frontier.at(budget) for budget in sorted(budgets))
    if small is not None:
        assert large is not None
        assert large.cost <= small.cost
        assert large.bound <= small.bound


@given(frontier=frontiers(), budget=st.integers(1, 40))
def test_at_a_budget_is_the_best_answer_with_the_best_bound(frontier: Frontier, budget: int) -> None:
    best = frontier.at(budget)
    fitting = [a for a in frontier.answers if a.peak is not None and a.peak <= budget]
    if best is None:
        assert not fitting
        return
    assert best.problem.budget == budget
    assert best.peak is not None
    assert best.peak <= budget
    assert best.cost == min(a.cost for a in fitting)
    for answer in frontier.answers:
        if answer.problem.budget >= budget:
            assert best.bound >= min(answer.bound, best.cost)
    assert best.bound <= best.cost


@given(graph=graphs(max_ops=8))
def test_a_sweep_is_as_good_as_each_solve(graph: DFGraph) -> None:
    whole = keep_all_peak(graph)
    if whole < 1:
        return
    budgets = sorted({max(1, whole * share // 4) for share in (2, 3, 4)})
    frontier = sweep(graph, budgets, ["keep-all", "evict-dtr"])
    assert not frontier.errors
    assert len(frontier.answers) == 2 * len(budgets)
    for budget in budgets:
        alone = solve(graph, budget, solver="evict-dtr", throw=False)
        together = frontier.at(budget)
        if alone.schedule is not None:
            assert together is not None
            assert together.cost <= alone.cost
            assert together.bound >= alone.bound


def test_the_frontier_of_a_chain() -> None:
    frontier = sweep(CHAIN, [16, "60%", 0.8, "100%", 40], ["heuristics"])
    assert shape(frontier) == [(24, 11.0, "heuristics"), (32, 9.0, "heuristics"), (40, 8.0, "heuristics")]
    assert [answer.problem.budget for answer in frontier.answers] == [16, 24, 32, 40]  # "100%" is 40
    assert frontier.answers[0].status is Status.INFEASIBLE
    assert frontier.at("60%") is not None
    assert frontier.at(23) is None
    assert frontier.at(10**9) is not None
    with pytest.raises(BudgetError):
        frontier.at("much")
    text = repr(frontier)
    assert text.startswith("<Frontier: 3 points of 4 answers (1 infeasible), 0 errors>")
    assert "32 B    12.50%" in text
    assert len(text.splitlines()) == 5


def test_a_bound_for_a_large_budget_serves_a_smaller_one() -> None:
    def bounded(problem: Problem) -> Solution:
        schedule = Schedule.from_sequence(CHAIN, TWICE)
        return Solution.found(problem, schedule, bound=8.5 if problem.budget == 50 else 0.0)

    frontier = sweep(CHAIN, [40, 50], [Says(bounded)])
    assert [answer.bound for answer in frontier.answers] == [8.0, 8.5]
    bounds = {budget: found.bound for budget in (40, 50, 51) if (found := frontier.at(budget))}
    assert bounds == {40: 8.5, 50: 8.5, 51: 8.0}


def test_where_a_bound_comes_from_is_said() -> None:
    def bounded(problem: Problem) -> Solution:
        return Solution.unknown(problem, bound=7.5)

    frontier = sweep(CHAIN, [40], [Says(lambda p: Solution.found(p, everything(), bound=0.5)), Says(bounded)])
    best = frontier.at(40)
    assert best is not None
    assert (best.bound, best.status, best.origin) == (8.0, Status.OPTIMAL, {"bound": "Says"})


def everything() -> Schedule:
    return Schedule.from_sequence(CHAIN, range(8))


@pytest.mark.parametrize("lie", ["bound", "infeasible"])
def test_a_bound_that_a_schedule_disproves_is_an_error(lie: str) -> None:
    problem = Problem(graph=CHAIN, budget=41)
    said = {"bound": Solution.unknown(problem, bound=8.5), "infeasible": Solution.infeasible(problem)}[lie]
    answers = (replace(said, solver="Says"), solve(CHAIN, 41, solver="keep-all"))
    frontier = Frontier(graph=CHAIN, answers=answers)
    assert shape(frontier) == [(40, 8.0, "keep-all")]
    assert [answer.solver for answer in frontier.answers] == ["keep-all"]
    (failure,) = frontier.errors
    assert (failure.budget, failure.solver) == (41, "Says")
    assert isinstance(failure.error, SolverError)
    assert "'keep-all' found one that costs 8.0 with a peak of 40 bytes" in str(failure.error)


def test_a_bound_of_an_odd_type_arrives_as_a_float() -> None:
    """A NumPy integer, and −∞, which JSON would turn into ∞."""
    said = {40: np.int64(8), 41: -math.inf}
    frontier = sweep(CHAIN, said, [Says(lambda p: Solution.unknown(p, bound=said[p.budget]))])
    assert [(answer.status, answer.bound) for answer in frontier.answers] == [
        (Status.UNKNOWN, 8.0),
        (Status.UNKNOWN, 0.0),
    ]


def test_an_interrupt_during_a_solve_ends_the_whole_sweep() -> None:
    asked: list[int] = []

    def interrupted(problem: Problem) -> Solution:
        asked.append(problem.budget)
        return replace(Solution.found(problem, everything()), origin={"interrupted": "Ctrl-C"})

    with pytest.raises(SweepInterrupted, match="after 0 of 2 answers"):
        sweep(CHAIN, ["100%", "200%"], solvers=(Says(interrupted),))
    assert len(asked) == 1


def test_an_interrupt_leaves_the_frontier_of_the_answers_so_far() -> None:
    def until_24(problem: Problem) -> Solution:
        if problem.budget == 24:
            raise KeyboardInterrupt
        if problem.budget == 32:
            raise ValueError("no")
        return Solution.found(problem, everything())

    with pytest.raises(KeyboardInterrupt) as stopped:
        sweep(CHAIN, [50, 32, 40, 24, 41], [Says(until_24)])
    assert isinstance(stopped.value, SweepInterrupted)
    assert (str(stopped.value), stopped.value.total) == ("after 3 of 5 answers", 5)
    assert [answer.problem.budget for answer in stopped.value.frontier.answers] == [50, 40]
    assert [failure.budget for failure in stopped.value.frontier.errors] == [32]


@dataclass(frozen=True)
class Lazy:
    """Finds a cheap schedule for 24 bytes only; for 40 it needs a start, and for 41 it finds none."""

    asked: list[tuple[int, bool]]
    uses_start: bool = True

    def solve(self, problem: Problem) -> Solution:
        self.asked.append((problem.budget, problem.start is not None))
        if problem.budget == 24:
            return BestHeuristic().solve(problem)
        repeats = 0 if problem.start is not None and problem.budget == 40 else 5
        return Solution.found(problem, Schedule.from_sequence(problem.graph, [*[0] * repeats, *range(8)]))


def test_where_a_smaller_budget_is_cheaper_the_solver_goes_on_from_its_schedule() -> None:
    solver, heard = Lazy([]), list[tuple[int, int]]()
    frontier = sweep(UNSEEN, [24, 40, 41], [solver], on_progress=lambda done, of, _: heard.append((done, of)))
    assert solver.asked == [(24, False), (40, False), (41, False), (40, True), (41, True)]
    assert heard == [(1, 3), (2, 3), (3, 3), (4, 5), (5, 5)]
    assert [(answer.problem.budget, answer.cost) for answer in frontier.answers] == [
        (24, 22.0),
        (40, 16.0),
        (41, 22.0),
    ]
    assert shape(frontier) == [(24, 22.0, "Lazy"), (40, 16.0, "Lazy")]


@dataclass(frozen=True)
class Liar(Lazy):
    """Claims for 40 bytes, without a start, that nothing is cheaper than its dear schedule."""

    def solve(self, problem: Problem) -> Solution:
        found = super().solve(problem)
        return replace(found, bound=found.cost) if problem.start is None and problem.budget == 40 else found


def test_a_second_answer_does_not_hide_that_the_first_was_a_lie() -> None:
    frontier = sweep(UNSEEN, [24, 40], [Liar([])])
    assert [answer.problem.budget for answer in frontier.answers] == [24]
    assert [failure.budget for failure in frontier.errors] == [40]
    assert "no schedule costs less than 26.0" in str(frontier.errors[0].error)


def test_a_solver_that_does_not_go_on_is_asked_once() -> None:
    solver = Lazy([], uses_start=False)
    assert shape(sweep(UNSEEN, [24, 40], [solver])) == [(24, 22.0, "Lazy")]
    assert solver.asked == [(24, False), (40, False)]


def test_a_long_frontier_is_shown_in_part() -> None:
    wide = DFGraph.from_nodes(cost=[1] * 40, size=[1] * 40, deps=[[]] * 40, outputs=[39])

    def wasteful(problem: Problem) -> Solution:
        """Never frees; one compute less for every further byte."""
        k = problem.budget - 2
        return Solution.found(problem, Schedule(np.array([*range(k), *[39] * (100 - 2 * k)])))

    frontier = sweep(wide, range(2, 37), [Says(wasteful)])
    assert [(point.peak, point.cost) for point in frontier.points] == [(k + 2, 100 - k) for k in range(35)]
    lines = repr(frontier).splitlines()
    assert (len(lines), lines[-1]) == (33, "… and 5 more")


def test_nonsense_is_refused_before_anything_starts() -> None:
    def never(problem: Problem) -> Solution:
        raise AssertionError("asked")

    for budgets in (["60%", "much"], [40, 0], "60%"):
        with pytest.raises(BudgetError):
            sweep(CHAIN, budgets, [Says(never)])
    with pytest.raises(BudgetError, match="lists"):
        sweep(CHAIN, [40], "auto")
    with pytest.raises(PluginError, match="no solver 'everst'"):
        sweep(CHAIN, [40], [Says(never), "everst"])
    with pytest.raises(ValueError, match="time_limit"):
        sweep(CHAIN, [40], [Says(never)], time_limit=0)


def test_no_question_no_answer() -> None:
    frontier = sweep(CHAIN, [], ["heuristics"])
    assert (frontier.points, frontier.answers, frontier.errors) == ((), (), ())
    assert frontier.at("100%") is None
    assert repr(frontier) == "<Frontier: 0 points of 0 answers, 0 errors>"


def test_settings_reach_the_solvers() -> None:
    seen: list[Problem] = []

    def spy(problem: Problem) -> Solution:
        seen.append(problem)
        return KeepAll().solve(problem)

    sweep(CHAIN, [40], [Says(spy)], time_limit=3, fixed_order=True, threads=2, seed=5)
    assert seen == [Problem(graph=CHAIN, budget=40, time_limit=3, fixed_order=True, threads=2, seed=5)]


def test_an_empty_graph_has_a_frontier() -> None:
    frontier = sweep(DFGraph(ops=(), tensors=()), [1], ["heuristics"])
    assert [(point.peak, point.cost, point.problem.budget) for point in frontier.points] == [(0, 0.0, 1)]
    assert floor(frontier.graph).size == 0


def test_budgets_of_the_same_bytes_are_solved_once() -> None:
    """Shares of a small peak often are."""
    frontier = sweep(CHAIN, ["100%", keep_all_peak(CHAIN), 1.0, "60%"], ["heuristics"])
    assert frontier.summary == "2 points of 2 answers, 0 errors"

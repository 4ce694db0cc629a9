"""Which moments the cut MILP is solved for, and that what it proves holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from scipy.optimize import OptimizeResult

from checkmate import DFGraph, Problem, Status, generators, keep_all_peak
from checkmate.testing.strategies import problems
from checkmate_solvers import engines
from checkmate_solvers.moments import cut_milp
from checkmate_solvers.moments.cut_milp import CutMilp, solve_cuts
from checkmate_solvers.moments.moment import Decision, Moment, crowded_ops, moment_at
from checkmate_solvers.search import Incumbent


@given(problem=problems())
def test_no_schedule_is_below_the_bound(oracle, problem: Problem) -> None:
    assert CutMilp().solve(problem).bound <= oracle.optimum(problem) * (1 + 1e-9)


def test_several_moments_prove_more_than_one() -> None:
    graph = generators.chain(12, cost="random")
    problem = Problem(graph=graph, budget=keep_all_peak(graph) * 3 // 10, fixed_order=True, time_limit=60)
    one = CutMilp(moments=0).solve(problem)
    several = CutMilp(moments=4).solve(problem)
    assert several.bound > one.bound


def test_alone_it_starts_with_the_moment_of_the_highest_minimum_cut() -> None:
    graph = generators.unet(4)
    problem = Problem(graph=graph, budget=keep_all_peak(graph) * 45 // 100)
    most_crowded = Incumbent(problem)
    CutMilp(moments=0).improve(most_crowded)
    assert CutMilp(moments=0).solve(problem).bound > most_crowded.bound


def test_one_more_moment_at_a_time_until_nothing_is_over_the_budget() -> None:
    graph = generators.chain(8)
    solution = CutMilp(moments=20).solve(Problem(graph=graph, budget=5, fixed_order=True))
    assert (solution.status, solution.cost) == (Status.OPTIMAL, 22)


def test_relaxations_choose_the_moments_and_the_rest_of_the_time_goes_to_the_milp_of_all(monkeypatch) -> None:
    asked: list[tuple[list[int], float, bool]] = []

    def unfinished(moments: Sequence[Moment], *, time_limit: float, **options: Any) -> Decision:
        asked.append(([moment.at for moment in moments], time_limit, "linear" in options))
        return replace(solve_cuts(moments, time_limit=time_limit, **options), finished=False)

    monkeypatch.setattr(cut_milp, "solve_cuts", unfinished)
    graph = generators.chain(12, cost="random")
    problem = Problem(graph=graph, budget=keep_all_peak(graph) * 3 // 10, fixed_order=True, time_limit=60)
    CutMilp().solve(problem)
    (first, first_s, _), (last, last_s, _) = (row for row in asked if not row[2])
    tried = [moments for moments, _, linear in asked if linear]
    assert len(first) == 1 < len(last)
    assert last in tried
    assert first_s < 15 < 45 < last_s


def test_where_the_first_milp_finds_nothing_its_relaxation_chooses_more_moments(monkeypatch) -> None:
    def nothing(moments: Sequence[Moment], *, linear: bool = False, **options: Any) -> Decision:
        found = solve_cuts(moments, linear=True, **options)
        return found if linear else Decision(recompute=0.0, keep={}, finished=False)

    monkeypatch.setattr(cut_milp, "solve_cuts", nothing)
    graph = generators.unet(3)
    problem = Problem(graph=graph, budget=keep_all_peak(graph) * 45 // 100)
    one, several = (CutMilp(moments=moments).solve(problem).bound for moments in (0, 4))
    assert several > one


@pytest.mark.parametrize(("gap", "shares"), [(0.005, [2 / 3]), (0.1, [1 / 6, 1])])
def test_a_milp_that_may_close_the_gap_alone_has_most_of_the_time_once(
    monkeypatch, gap: float, shares: list[float]
) -> None:
    graph = generators.chain(12, cost="random")
    problem = Problem(graph=graph, budget=keep_all_peak(graph) * 3 // 10, fixed_order=True, time_limit=60)
    best = Incumbent(problem)
    best.keep_if_better(CutMilp().solve(problem).schedule.sequence.tolist(), "known")
    best.raise_bound((1 - gap) * best.cost, "known")
    limits: list[float] = []

    def unfinished(moments: Sequence[Moment], *, time_limit: float, **_: Any) -> Decision:
        limits.append(time_limit / best.clock.left_s)
        best.clock.deadline = best.clock.deadline.part(1 - limits[-1])  # as if it took all of it
        return Decision(recompute=0.0, keep={}, finished=False)

    monkeypatch.setattr(cut_milp, "solve_cuts", unfinished)
    CutMilp(moments=0).improve(best)
    assert limits == pytest.approx(shares, rel=0.1)


@pytest.mark.parametrize(("finished", "moments"), [(True, 4), (False, 0)], ids=["gap closed", "nodes used"])
def test_nothing_is_solved_after_a_milp_that_more_time_would_not_help(
    monkeypatch, finished: bool, moments: int
) -> None:
    problem = Problem(graph=generators.chain(12), budget=5, fixed_order=True, time_limit=60)
    best, asked = Incumbent(problem), list[bool]()
    best.keep_if_better(CutMilp(moments=0).solve(problem).schedule.sequence.tolist(), "known")

    def at_once(_: Sequence[Moment], *, linear: bool = False, **__: Any) -> Decision:
        asked.append(linear)
        return Decision(recompute=(best.cost - best.base) * finished, keep={}, finished=finished)

    monkeypatch.setattr(cut_milp, "solve_cuts", at_once)
    CutMilp(moments=moments).improve(best)
    assert asked == [False]


def test_without_nodes_relaxations_prove_a_bound_and_no_schedule_is_found() -> None:
    graph = generators.chain(12, cost="random")
    problem = Problem(graph=graph, budget=keep_all_peak(graph) * 3 // 10, fixed_order=True, time_limit=60)
    one, several = (CutMilp(moments=moments, nodes=0).solve(problem) for moments in (0, 4))
    assert one.schedule is several.schedule is None
    assert math.fsum(graph.costs) < one.bound < several.bound <= CutMilp().solve(problem).bound


def test_a_rejected_model_is_no_proof(monkeypatch) -> None:
    """SciPy gives "infeasible" and "HiGHS rejects the model" the same status."""
    graph = generators.chain(8)
    moment = moment_at(graph, 5, crowded_ops(Problem(graph=graph, budget=5), 1)[0], fixed_order=True)
    message = "(HiGHS Status 2: model_status is Model error; primal_status is None)"
    monkeypatch.setattr(engines, "milp", lambda *_, **__: OptimizeResult(status=2, message=message, x=None))
    decision = solve_cuts([moment], time_limit=1, nodes=1)
    assert (decision.recompute, decision.keep) == (0.0, {})


def test_a_moment_without_room_for_its_inputs_proves_that_nothing_fits() -> None:
    graph = DFGraph.from_nodes(cost=[1] * 3, size=[4, 4, 4], deps=[[], [0], [0, 1]])
    moments = [moment_at(graph, 8, at, fixed_order=True) for at in (1, 2)]
    assert solve_cuts(moments, time_limit=1, nodes=1).recompute == math.inf

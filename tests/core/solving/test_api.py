"""``solve`` trusts no solver: each false claim is found, and names the solver."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from tests.core.graphs import CHAIN, DIAMOND, Says

from checkmate import (
    BudgetError,
    Compute,
    DFGraph,
    InfeasibleBudgetError,
    Op,
    PluginError,
    Problem,
    Progress,
    Schedule,
    Solution,
    SolverError,
    Status,
    Timeline,
    keep_all_peak,
    minimum_budget,
    solve,
)
from checkmate.heuristics import BestHeuristic, KeepAll
from checkmate.testing.strategies import graphs


def everything(graph: DFGraph) -> Schedule:
    return Schedule.from_sequence(graph, range(graph.n_ops))


def found(problem: Problem, schedule: Schedule | None) -> Solution:
    assert schedule is not None
    return Solution.found(problem, schedule)


def forged(problem: Problem, schedule: Schedule, **fields: object) -> Solution:
    """A Solution with replaced fields, which the judge has not checked."""
    n = problem.graph.n_ops
    timeline = Timeline(
        graph=problem.graph,
        schedule=schedule,
        memory=np.zeros(len(schedule), dtype=np.int64),
        runs=np.ones(n, dtype=np.int64),
        peak=1,
        cost=0.5,
    )
    return Solution(problem=problem, **({"status": Status.FEASIBLE, "timeline": timeline} | fields))  # type: ignore[arg-type]


def elsewhere(problem: Problem) -> Solution:
    other = dataclasses.replace(problem, graph=dataclasses.replace(problem.graph, fixed_size=1))
    return Solution.found(dataclasses.replace(other, budget=10**6), everything(other.graph))


LIES: dict[str, tuple[str, Callable[[Problem], object], str]] = {
    "over the budget": ("60%", lambda p: forged(p, everything(p.graph)), "over the budget of 24"),
    "invalid": ("60%", lambda p: forged(p, Schedule.of([Compute(1)])), "invalid schedule: step 0, op 1"),
    "another graph": ("60%", elsewhere, "another graph"),
    "bound above cost": (
        "100%",
        lambda p: forged(p, everything(p.graph), bound=8.5),
        "no schedule costs less than",
    ),
    "bound is nan": ("100%", lambda p: forged(p, everything(p.graph), bound=float("nan")), "not a number"),
    "bound has no end": ("100%", lambda p: forged(p, everything(p.graph), bound=10**400), "OverflowError"),
    "bound is None": ("100%", lambda p: forged(p, everything(p.graph), bound=None), "not a number: None"),
    "bound without schedule": ("60%", lambda p: Solution.unknown(p, bound="7"), "not a number: '7'"),  # type: ignore[arg-type]
    "not optimal": (
        "100%",
        lambda p: forged(p, Schedule.from_sequence(p.graph, [0, 0, *range(1, 8)]), status=Status.OPTIMAL),
        "claims an optimum, but its schedule costs 9.0",
    ),
    "feasible without schedule": (
        "60%",
        lambda p: Solution(problem=p, status=Status.FEASIBLE),
        "gave no schedule",
    ),
    "infeasible with schedule": (
        "100%",
        lambda p: forged(p, everything(p.graph), status=Status.INFEASIBLE),
        "infeasible, but gave a schedule",
    ),
    "infeasible, in other words": (
        "100%",
        lambda p: Solution(problem=p, status="infeasible"),  # type: ignore[arg-type]
        "heuristics found a schedule",
    ),
    "infeasible though it is not": ("100%", Solution.infeasible, "built-in heuristics found a schedule"),
    "infeasible though recomputation helps": ("80%", Solution.infeasible, "built-in heuristics found"),
    "a proof by bound that it is infeasible": (
        "100%",
        lambda p: Solution.unknown(p, bound=math.inf),
        "heuristics found a schedule",
    ),
    "optimal, for a smaller budget": (
        "80%",
        lambda p: BestHeuristic().solve(dataclasses.replace(p, budget=24)),
        "about a budget of 24 bytes .* not 32",
    ),
    "optimal, for a fixed order": (
        "100%",
        lambda p: KeepAll().solve(dataclasses.replace(p, fixed_order=True)),
        "fixed_order=True, not .* with False",
    ),
    "no schedule but a list": ("100%", lambda p: forged(p, [0, 1]), "no attribute 'codes'"),  # type: ignore[arg-type]
    "no timeline": ("100%", lambda p: Solution(problem=p, status=Status.FEASIBLE, timeline=7), "no sound"),  # type: ignore[arg-type]
    "no problem": ("100%", lambda p: dataclasses.replace(KeepAll().solve(p), problem=None), "no sound"),  # type: ignore[arg-type]
    "no status": (
        "100%",
        lambda p: dataclasses.replace(KeepAll().solve(p), status="fine"),
        "'fine' is not a",
    ),  # type: ignore[arg-type]
    "no origin": ("100%", lambda p: dataclasses.replace(KeepAll().solve(p), origin=[1]), "no sound"),  # type: ignore[arg-type]
    "no solution at all": ("60%", lambda p: {"status": "optimal"}, "returned a dict, not a Solution"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_caught_and_the_liar_named(lie: str) -> None:
    budget, answer, complaint = LIES[lie]
    with pytest.raises(SolverError, match=complaint) as caught:
        solve(CHAIN, budget, solver=Says(answer))
    assert "solver 'Says'" in str(caught.value)


def test_reordered_first_runs_are_an_error_only_with_a_fixed_order() -> None:
    liar = Says(lambda p: Solution.found(p, Schedule.from_sequence(p.graph, [0, 2, 1, 3])))
    assert solve(DIAMOND, "100%", solver=liar).cost == 4.0
    with pytest.raises(SolverError, match="base order"):
        solve(DIAMOND, "100%", solver=liar, fixed_order=True)
    honest = Says(lambda p: Solution.found(p, Schedule.from_sequence(p.graph, [0, 1, 0, 2, 3])))
    assert solve(DIAMOND, "100%", solver=honest, fixed_order=True).cost == 5.0


def test_numbers_of_the_answer_are_the_judges() -> None:
    solution = solve(CHAIN, "100%", solver=Says(lambda p: forged(p, everything(p.graph), solver="me")))
    assert (solution.peak, solution.cost, solution.solver) == (keep_all_peak(CHAIN), 8.0, "Says")
    assert solution.status is Status.OPTIMAL  # its cost is that of computing everything once
    assert solution.seconds >= 0


class TwoFaced(Schedule):
    """Changes its schedule after the first access."""

    looks = 0

    @property  # type: ignore[override]
    def codes(self) -> object:
        TwoFaced.looks += 1
        return everything(CHAIN).codes if TwoFaced.looks <= 2 else np.array([7])

    def __init__(self) -> None:
        """Hold no value."""


def test_the_user_gets_the_timeline_of_the_judge() -> None:
    given: list[Schedule] = []

    def remember(problem: Problem) -> Solution:
        given.append(everything(CHAIN))
        return Solution.found(problem, given[0])

    shown = solve(CHAIN, "100%", solver=Says(remember)).schedule
    given[0].codes.flags.writeable = True
    given[0].codes[:] = 0
    assert shown == everything(CHAIN)
    shown = solve(CHAIN, "100%", solver=Says(lambda p: forged(p, TwoFaced()))).schedule
    assert type(shown) is Schedule
    assert shown == everything(CHAIN)


def test_where_an_answer_came_from_is_printable() -> None:
    """An odd origin becomes text, which is shown, and written to the cache."""
    odd = {1: "\x1b[31mred\nand \ud800"}
    answer = solve(CHAIN, "100%", solver=Says(lambda p: dataclasses.replace(KeepAll().solve(p), origin=odd)))  # type: ignore[arg-type]
    assert answer.origin == {"1": r"\x1b[31mred\nand \ud800"}


def test_settings_reach_the_solver() -> None:
    seen: list[Problem] = []
    heard: list[Progress] = []
    report = Progress(None, 0.0, 0.1, "thinking")

    def spy(problem: Problem) -> Solution:
        seen.append(problem)
        assert problem.on_progress is not None
        problem.on_progress(report)
        return KeepAll().solve(problem)

    listen = heard.append
    settings = {"time_limit": 3, "fixed_order": True, "threads": 2, "seed": 5, "on_progress": listen}
    solution = solve(CHAIN, 40, solver=Says(spy), **settings)  # type: ignore[arg-type]
    assert seen == [Problem(graph=CHAIN, budget=40, time_limit=3, fixed_order=True, threads=2, seed=5)]
    assert heard == [report]
    assert solution.problem.on_progress is listen


class Silent(Exception):
    """Raises from ``str``."""

    def __str__(self) -> str:
        raise ValueError

    @staticmethod
    def shout() -> Solution:
        raise Silent


def test_a_solver_that_fails_is_named_and_its_error_is_the_cause() -> None:
    failure = KeyError("\x1b[31mred\nand dead")

    def fail(problem: Problem) -> Solution:
        raise failure

    with pytest.raises(SolverError, match=r"solver 'Says' failed: KeyError: '") as caught:
        solve(CHAIN, "60%", solver=Says(fail))
    assert caught.value.__cause__ is failure
    assert str(caught.value).isprintable()
    with pytest.raises(SolverError, match=r"solver 'Says' failed: Silent$"):
        solve(CHAIN, "60%", solver=Says(lambda _: Silent.shout()))
    with pytest.raises(SolverError, match=r"solver 'Says' failed: SystemExit: 3"):
        solve(CHAIN, "60%", solver=Says(lambda _: sys.exit(3)))
    with pytest.raises(SolverError, match=r"failed: SolverError: .* less than nan"):
        solve(CHAIN, "100%", solver=Says(lambda p: Solution.found(p, everything(CHAIN), bound=math.nan)))


@pytest.mark.parametrize(
    "raised", [ValueError("enough"), KeyboardInterrupt(), SystemExit(3), SolverError("mine")]
)
def test_an_exception_of_the_listener_is_not_a_solver_error(raised: BaseException) -> None:
    def listen(_: Progress) -> None:
        raise raised

    def report(problem: Problem) -> Solution:
        assert problem.on_progress is not None
        problem.on_progress(Progress(None, 0.0, 0.0, "start"))
        raise AssertionError("went on")

    with pytest.raises(type(raised)) as caught:
        solve(CHAIN, "60%", solver=Says(report), on_progress=listen)
    assert caught.value is raised


@pytest.mark.parametrize(
    "setting",
    [
        {"time_limit": math.nan},
        {"time_limit": -1.0},
        {"time_limit": "x"},
        {"threads": 0},
        {"threads": 1.5},
        {"seed": "x"},
        {"seed": -1},
    ],
)
def test_a_senseless_setting_is_named(setting: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(setting))} is "):
        solve(CHAIN, "60%", **setting)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"graph": "graph.json"}, "graph is a str, must be a DFGraph"),
        ({"solver": None}, "solver is None, must be a name or an object"),
        ({"solver": KeepAll}, "must be a name or an object"),
        ({"cache": "folder"}, "cache is 'folder', must be"),
    ],
)
def test_an_argument_of_the_wrong_type_is_named(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        solve(**({"graph": CHAIN, "budget": "60%"} | setting))


@pytest.mark.parametrize("budget", [0, -1, "0%", "much", True, 1e9])
def test_a_senseless_budget_is_rejected(budget: int | float | str) -> None:
    with pytest.raises(BudgetError):
        solve(CHAIN, budget)


def test_below_the_floor_is_proved_infeasible_without_asking() -> None:
    def never(problem: Problem) -> Solution:
        raise AssertionError("asked")

    solution = solve(CHAIN, 23, solver=Says(never), throw=False)
    assert solution.status is Status.INFEASIBLE
    with pytest.raises(InfeasibleBudgetError, match="is proved infeasible") as caught:
        solve(CHAIN, 23, solver=Says(never))
    error = caught.value
    assert (error.budget, error.floor, error.proved) == (23, 24, True)
    assert error.bottleneck == "5"
    assert error.minimum == minimum_budget(CHAIN).peak
    assert str(error.minimum) in str(error)


def test_none_found_is_no_proof() -> None:
    assert solve(CHAIN, 24, solver=KeepAll(), throw=False).status is Status.UNKNOWN
    with pytest.raises(InfeasibleBudgetError, match="was not met by this solver, but 24 bytes") as caught:
        solve(CHAIN, 24, solver=KeepAll())
    assert not caught.value.proved


def test_the_reason_for_no_schedule_is_given() -> None:
    shy = Says(lambda problem: Solution.unknown(problem, reason="not on a Sunday"))
    assert solve(CHAIN, 24, solver=shy, throw=False).origin == {"reason": "not on a Sunday"}
    with pytest.raises(InfeasibleBudgetError, match="by this solver \\(not on a Sunday\\), but 24"):
        solve(CHAIN, 24, solver=shy)


def test_outputs_that_do_not_fit_are_no_op() -> None:
    graph = DFGraph.from_nodes(cost=[1, 1], size=[4, 4], deps=[[], []], outputs=[0, 1])
    with pytest.raises(InfeasibleBudgetError, match="the graph outputs set that floor") as caught:
        solve(graph, 4)
    assert caught.value.bottleneck is None


def test_an_unknown_solver_is_an_error() -> None:
    with pytest.raises(PluginError, match="no solver 'everst'; installed: "):
        solve(CHAIN, "60%", solver="everst")


@given(graph=graphs())
def test_everything_fits_at_the_keep_all_peak(graph: DFGraph) -> None:
    if keep_all_peak(graph) > 0:
        solution = solve(graph, "100%", solver=BestHeuristic())
        assert solution.cost <= graph.ideal_cost * (1 + 1e-12)


def test_an_empty_graph_is_solved() -> None:
    solution = solve(DFGraph(ops=(), tensors=()), 1, solver="heuristics")
    assert (solution.status, solution.cost, solution.overhead, solution.gap) == (
        Status.OPTIMAL,
        0.0,
        0.0,
        0.0,
    )


@pytest.mark.parametrize(
    "change",
    [lambda ops: ops[:1], lambda ops: tuple(dataclasses.replace(op, cost=0.0) for op in ops)],
    ids=["fewer ops", "cheaper ops"],
)
def test_a_solver_that_changes_the_graph_is_named(change: Callable[[tuple[Op, ...]], tuple[Op, ...]]) -> None:
    def vandal(problem: Problem) -> Solution:
        answer = KeepAll().solve(problem)
        object.__setattr__(problem.graph, "ops", change(problem.graph.ops))
        return answer

    graph = DFGraph.from_nodes(cost=[1] * 3, size=[8] * 3, deps=[[], [0], [1]])
    with pytest.raises(SolverError, match="'Says' changed the graph"):
        solve(graph, "100%", solver=Says(vandal))

"""The largest graph that each solver gets, and the tables of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from checkmate import DFGraph, generators, keep_all_peak, solve
from evaluation import scaling
from evaluation.results import Results, Row
from evaluation.scaling import EXPERIMENT
from evaluation.solving import solved


def ladder(solver: str, *, steps: list[int], kind: str = "chain") -> dict[str, Any]:
    return {"kind": kind, "steps": steps, "share": 0.5, "solver": solver, "time_limit": 1.0}


def point(graph: DFGraph, cost: float | None) -> dict[str, Any]:
    times = dict.fromkeys(("first_s", "near_s", "final_s"), None if cost is None else 0.25)
    return {"ops": graph.n_ops, "cost": cost, "bound": 1.0, "seconds": 1.0, **times}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of ops of each solved graph; the solver finds no schedule beyond 150."""
    sizes: list[int] = []

    def found(graph: DFGraph, share: float, solver: str, **_: Any) -> Mapping[str, Any]:
        sizes.append(graph.n_ops)
        return point(graph, 1.1 if graph.n_ops <= 150 else None)

    monkeypatch.setattr(scaling, "solved", found)
    return sizes


def test_a_solver_without_two_schedules_gets_no_larger_graph(asked: list[int]) -> None:
    points = EXPERIMENT.measure(ladder("auto", steps=[15, 50, 100, 200, 300]))["points"]
    assert asked == [31, 101, 201, 401]
    assert [p["cost"] for p in points] == [1.1, 1.1, None, None]


def test_impossible_budgets_are_skipped(asked: list[int]) -> None:
    """A transformer of one block needs more than half its peak for the step of its vocabulary."""
    EXPERIMENT.measure(ladder("auto", steps=[1, 3], kind="transformer"))
    assert asked == [generators.transformer(3, vocabulary=2_000).n_ops]


def test_the_tables_tell_nothing_found_from_not_asked() -> None:
    small, large = generators.chain(50), generators.chain(500)
    rows = (
        Row(task=ladder("auto", steps=[50, 500]), result={"points": [point(small, 1.2), point(large, 1.25)]}),
        Row(task=ladder("lp-rounding", steps=[50, 500]), result={"points": [point(small, 1.26)]}),
        Row(task=ladder("chen-greedy", steps=[50, 500]), result={"points": [point(small, None)]}),
    )
    said = EXPERIMENT.markdown(Results(experiment="scaling", rows=rows))
    assert "| chain | 101 | 50% | 1.0000 (0.250) | 1.0500 (0.250) | – |" in said
    assert "| chain | 1,001 | 50% | 1.0000 (0.250) |  |  |" in said
    assert "| lp-rounding | 101 |" in said
    assert "| chen-greedy | – |" in said
    assert "| MOCCASIN | retention intervals, CP-SAT | 1000 | minutes to an hour | 1,001 | 1 of 1 |" in said
    assert "| FastSA | annealing of sequences, one core | 8330 | 3 to 30 s | – |" in said
    assert EXPERIMENT.draw(Results(experiment="scaling", rows=rows)) is not None


def test_a_solve_in_a_process_of_its_own_agrees_with_the_solver() -> None:
    graph = generators.residual(2)
    found = solved(graph, 0.6, "evict-dtr", time_limit=5.0, late_s=5.0)
    own = solve(graph, int(0.6 * keep_all_peak(graph)), solver="evict-dtr", time_limit=5.0)
    assert found["cost"] == pytest.approx(own.cost / graph.ideal_cost)
    assert found["bound"] == pytest.approx(own.bound / graph.ideal_cost)
    assert 0 < found["first_s"] <= found["near_s"] <= found["final_s"] <= found["seconds"]


def test_a_quick_run_asks_the_first_steps_of_few() -> None:
    quick, whole = EXPERIMENT.tasks(True), EXPERIMENT.tasks(False)
    assert {task["solver"] for task in quick} < {task["solver"] for task in whole}
    assert all(max(task["steps"]) <= 20 for task in quick)

"""Costs against budgets: the best cost, the proved bound, and the fields of a row."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from evaluation import overhead
from evaluation.results import Results, Row, key_of, read_results

PAPER = {"vgg16": 256, "mobilenet": 512, "unet": 32}


def row(budget: int, solver: str, cost: float | None, bound: float | None = 1.0, **more: Any) -> Row:
    about = {"network": "vgg16", "level": "layer", "batch": 8, "small": True, "solver": solver}
    result = {"budget": budget, "cost": cost, "bound": bound, "peak": cost and budget, "status": "feasible"}
    graph = {"keep_all": 8 * 10**9, "fixed": 0, "ops": 43}
    return Row(task=about, result=result | graph | more)


ROWS = [
    row(8 * 10**9, "auto", 1.0),
    row(6 * 10**9, "auto", 1.1, 1.1),
    row(4 * 10**9, "auto", 1.3, 1.05),
    row(6 * 10**9, "revolve", 1.5),
    row(4 * 10**9, "revolve", None),
    row(6 * 10**9, "chen-greedy", 1.4, peak=3 * 10**9),
]


def test_the_papers_networks_are_asked_at_its_batches() -> None:
    asked = {(task["network"], task["batch"]) for task in overhead.tasks(False) if task["level"] == "layer"}
    assert asked >= set(PAPER.items())


@pytest.mark.parametrize("quick", [True, False])
def test_no_question_is_asked_twice(quick: bool) -> None:
    tasks = overhead.tasks(quick)
    assert len(set(map(key_of, tasks))) == len(tasks)
    assert all(task["small"] == quick for task in tasks)


def test_a_schedule_serves_every_budget_that_holds_its_peak() -> None:
    assert overhead.best_at(ROWS, 8 * 10**9) == 1.0
    assert overhead.best_at(ROWS, 4 * 10**9) == 1.3
    assert overhead.best_at(ROWS, 3 * 10**9) == 1.4
    assert overhead.best_at(ROWS, 2 * 10**9) == math.inf


def test_a_bound_holds_for_every_smaller_budget() -> None:
    assert overhead.proved_at(ROWS, 8 * 10**9) == 1.0
    assert overhead.proved_at(ROWS, 4 * 10**9) == 1.1, "1.05 is proved there, 1.1 for more room"
    impossible = row(5 * 10**9, "auto", None, None, status="infeasible")
    assert overhead.proved_at([*ROWS, impossible], 4 * 10**9) == math.inf
    assert overhead.proved_at([*ROWS, impossible], 6 * 10**9) == 1.1


def test_the_table_has_a_line_for_each_solver_and_a_dash_where_there_is_no_schedule() -> None:
    lines = overhead.markdown(Results(experiment="overhead", rows=(*ROWS,))).splitlines()
    assert "| auto | 0.00 | 10.00 | 30.00 |" in lines
    assert "| revolve | – | 50.00 | – |" in lines
    assert "| *proved, at least* | 0.00 | 10.00 | 10.00 |" in lines


def test_each_network_has_a_picture_and_there_is_a_legend() -> None:
    other = [row(r["budget"], r["solver"], r["cost"]) for r in ROWS]
    results = Results(experiment="overhead", rows=(*ROWS, *(_of("unet", r) for r in other)))
    figure = overhead.draw(results)
    assert [axes.get_title()[:5] for axes in figure.axes if axes.get_title()] == ["VGG16", "U-Net"]
    (legend,) = figure.legends
    assert {text.get_text() for text in legend.get_texts()} == {
        *("auto", "revolve", "chen-greedy", "proved impossible")
    }


def test_rounding_as_published_has_no_schedule_where_ours_repairs_one() -> None:
    """On a small U-Net there is a budget at which no rounded schedule fits."""
    pytest.importorskip("torch")
    rows = {solver: _measured("unet", 0, solver) for solver in (overhead.PAPER_LP, "lp-rounding")}
    assert rows[overhead.PAPER_LP]["cost"] is None
    assert rows["lp-rounding"]["cost"] > 1


def test_eight_eighths_are_the_keep_everything_peak_and_none_the_floor() -> None:
    pytest.importorskip("torch")
    most, least = _measured("vgg16", 8, "keep-all"), _measured("vgg16", 0, "evict-dtr")
    assert most["budget"] == most["keep_all"] == most["peak"]
    assert most["cost"] == 1.0
    assert least["budget"] == least["floor"] >= least["peak"]
    assert least["cost"] > 1.0


RESULTS = read_results(Path(__file__).parents[3] / "benchmarks" / "results" / "overhead.json")
PANELS = [pytest.param(rows, id=overhead.title_of(rows[0])) for rows in overhead.panels(RESULTS)]


@pytest.mark.parametrize("rows", PANELS)
def test_no_schedule_of_the_committed_results_costs_less_than_is_proved(rows: list[Row]) -> None:
    for one in rows:
        if one["cost"] is not None:
            assert one["cost"] >= overhead.proved_at(rows, one["peak"]) * (1 - 1e-9)


@pytest.mark.parametrize("rows", PANELS)
def test_in_the_committed_results_more_room_never_costs_auto_more(rows: list[Row]) -> None:
    """Up to the gap of 0.05 % at which the solver stops on purpose."""
    costs = [row["cost"] for row in sorted(rows, key=lambda row: row["budget"]) if row["solver"] == "auto"]
    found = [cost for cost in costs if cost is not None]
    assert found
    assert all(more <= less * (1 + 5e-4) for less, more in pairwise(found))


def _of(network: str, old: Row) -> Row:
    return Row(task={**old.task, "network": network}, result=old.result)


def _measured(network: str, eighths: int, solver: str) -> dict[str, Any]:
    about = {"network": network, "level": "layer", "batch": 2, "small": True}
    return dict(overhead.measure({**about, "eighths": eighths, "solver": solver, "time_limit": 60.0}))

"""Predicted against measured: the table has the worst budget of each network."""

from __future__ import annotations

import pytest

from evaluation.peaks import EXPERIMENTS, draw, markdown
from evaluation.results import Results, Row


def row(share: float, peak: int, expected: int, bound: int | None = None) -> Row:
    result = {"budget": 100, "peak": peak, "expected": expected, "plain_peak": 200, "bound": bound}
    return Row(task={"network": "unet", "method": "checkmate", "share": share}, result=result)


def test_the_table_has_the_worst_budget() -> None:
    results = Results(experiment="steps-tf", rows=(row(0.6, 99, 99, 110), row(0.5, 101, 100, 101)))
    last = markdown(results).splitlines()[-1]
    assert last == "| unet, checkmate | 2 | 101.0% | -1.0% to +0.0% | +0.0% to +11.1% |"


def test_rows_without_a_plan_are_left_out() -> None:
    plain = Row(task={"network": "unet", "method": "plain"}, result={"peak": 200, "plain_peak": 200})
    last = markdown(Results(experiment="steps-torch", rows=(plain, row(0.5, 100, 100)))).splitlines()[-1]
    assert last == "| unet, checkmate | 1 | 100.0% | +0.0% | – |"


def test_each_network_has_its_points() -> None:
    pytest.importorskip("matplotlib")
    figure = draw(Results(experiment="steps-tf", rows=(row(0.6, 99, 99), row(0.5, 100, 100))))
    assert figure is not None
    assert [list(line.get_ydata()) for line in figure.axes[0].lines[:1]] == [[49.5, 50.0]]


def test_they_show_the_rows_of_the_steps() -> None:
    assert [(one.name, one.source.name) for one in EXPERIMENTS] == [
        ("peaks-torch", "steps-torch"),
        ("peaks-torch-whole", "steps-torch-whole"),
        ("peaks-tf", "steps-tf"),
    ]

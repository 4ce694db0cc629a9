"""Rows of real steps become tables and pictures; the failure of a method is a row of its own."""

from __future__ import annotations

import sys

import pytest

from evaluation.executions import EXPERIMENTS, STEPS_TF, STEPS_TORCH
from evaluation.experiment import Experiment
from evaluation.results import Results, Row, key_of
from evaluation.torch_details import EXPERIMENTS as DETAILS
from steps.process import measured, timed

PLAIN = {
    "peak": 200 << 20,
    "plain_peak": 200 << 20,
    "step_s": 1.0,
    "time_overhead": 0.0,
    "gradient_error": 0.0,
}
OURS = PLAIN | {"peak": 99 << 20, "budget": 100 << 20, "expected": 100 << 20, "overhead": 0.1}
ROWS = (
    Row(task={"network": "unet", "method": "plain", "share": None}, result=PLAIN),
    Row(task={"network": "unet", "method": "checkmate", "share": 0.5}, result=OURS | {"time_overhead": 0.12}),
    Row(
        task={"network": "unet", "method": "torch", "share": 0.5}, result={"failed": "RuntimeError: in place"}
    ),
    Row(task={"network": "unet", "method": "torch", "share": 0.2}, error="RuntimeError: exit -9"),
)


def test_the_table_has_a_line_for_each_row_and_says_why_something_failed() -> None:
    said = STEPS_TORCH.markdown(Results(experiment="steps-torch", rows=ROWS))
    assert "| checkmate | 50% | 100.0 | 100.0 | 99.0 | 50% | +10.0% | 1.000 | +12.0% | bits |  |" in said
    assert "- torch 50%: `RuntimeError: in place`" in said
    assert "- torch 20%: `RuntimeError: exit -9`" in said
    assert "within the budget in 1 of 1 rows" in said


def test_a_peak_over_its_budget_is_counted() -> None:
    over = Row(task=dict(ROWS[1].task), result=OURS | {"peak": 101 << 20})
    said = STEPS_TORCH.markdown(Results(experiment="steps-torch", rows=(*ROWS, over)))
    assert "within the budget in 1 of 2 rows" in said


def test_the_picture_has_a_panel_for_each_network() -> None:
    pytest.importorskip("matplotlib")
    other = Row(task=dict(ROWS[1].task) | {"network": "vgg19"}, result=OURS)
    figure = STEPS_TF.draw(Results(experiment="steps-tf", rows=(*ROWS, other)))
    assert figure is not None
    assert [axes.get_title() for axes in figure.axes] == ["unet", "vgg19"]


@pytest.mark.parametrize("one", [*EXPERIMENTS, *DETAILS], ids=lambda one: one.name)
def test_tasks_differ_and_a_quick_run_asks_fewer(one: Experiment) -> None:
    full, quick = (list(map(key_of, one.tasks(few))) for few in (False, True))
    assert len(set(quick)) == len(quick)
    assert len(set(full)) == len(full)
    assert 0 < len(quick) < len(full)


def test_an_exception_is_a_row_and_a_dead_process_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch")
    row = measured("torch_replay", {"network": "nonesuch", "spend_s": 0.0})
    assert row == {"failed": "KeyError: 'nonesuch'"}
    with pytest.raises(RuntimeError, match="KeyError: 'nonesuch'"):
        measured("torch_replay", {"network": "nonesuch", "spend_s": 0.0}, throw=True)
    with pytest.raises(RuntimeError, match=r"exit 1: .*No module named 'steps.nonesuch'|steps.nonesuch"):
        measured("nonesuch", {})
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="exit 1"):
        measured("torch_replay", {})


def test_time_is_compared_pair_by_pair() -> None:
    calls: list[str] = []
    row = timed(lambda: calls.append("ours"), lambda: calls.append("plain"), spend_s=0.0)
    assert calls == ["ours", "plain"] * 3
    assert row["pairs"] == 3

"""Predictions of fit beside measurements become a table."""

from __future__ import annotations

import pytest

from evaluation.results import Results, Row, key_of
from evaluation.torch_fit import EXPERIMENT, LORA

MIB = 2**20


def test_tasks_differ_and_five_have_adapters() -> None:
    tasks = EXPERIMENT.tasks(False)
    assert len(set(map(key_of, tasks))) == len(tasks)
    assert len({task["network"] for task in tasks}) >= 20
    assert sum(bool(task["lora"]) for task in tasks) == len(LORA) >= 5


def test_the_table_counts_what_is_close_and_what_was_trained_within_the_least_peak() -> None:
    exact = {"predicted": 100 * MIB, "with_workspaces": 100 * MIB, "measured": 100 * MIB, "least": 50 * MIB}
    rows = (
        Row(task=_task("A", train=True), result=exact | {"least_measured": 50 * MIB}),
        Row(task=_task("B", lora=["q"]), result=exact | {"predicted": 90 * MIB}),
        Row(task=_task("C"), result={"failed": "CheckmateError: why"}),
    )
    said = EXPERIMENT.markdown(Results(experiment=EXPERIMENT.name, rows=rows))
    assert "Of 2 predictions, 1 are within 2 %" in said
    assert "and 2 if workspaces are measured, 1 of 1 with adapters" in said
    assert "least peak: 1 of 1." in said
    assert "| A | adamw | 100.0 | 100.0 | +0.00% | +0.00% | 50.0 | 50% | 50.0 |" in said
    assert "| B, LoRA | adamw | 90.0 | 100.0 | -10.00% | +0.00% |  |  |  |" in said
    assert "- C: CheckmateError: why" in said


TINY = """
import json, torch
from steps import torch_fit
from zoo.small_torch import perceptron
from zoo.torch_world import ARCHITECTURES, Architecture

model, inputs = lambda: perceptron(64, 256, 64), {"input": torch.randn(512, 64)}
loss = lambda y: y.square().mean()
ARCHITECTURES["tiny"] = Architecture(library="none", make=lambda: (model(), inputs, loss))
print(json.dumps(torch_fit.measure({"network": "tiny", "optimizer": "adamw", "lora": [], "train": False})))
"""


def test_a_prediction_is_close_to_what_training_takes(printed) -> None:
    """In a process of its own: all tensors of a process are counted."""
    row = printed(TINY)
    for key in ("predicted", "with_workspaces"):
        assert row[key] == pytest.approx(row["measured"], rel=0.02)
    assert row["least"] <= row["predicted"]


def _task(network: str, *, train: bool = False, lora: list[str] | None = None) -> dict[str, object]:
    return {"network": network, "optimizer": "adamw", "lora": lora or [], "train": train}

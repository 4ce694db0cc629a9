"""Layers found for Keras' rematerialization, beside executed steps, become a table."""

from __future__ import annotations

from typing import Any

from evaluation.keras_remat import EXPERIMENT
from evaluation.results import Results, Row, key_of

MIB = 2**20
FOUND: dict[str, Any] = {
    "budget": "60%",
    "bytes": 100 * MIB,
    "policy": "remat of 2 layers, a … b",
    "peak": 99 * MIB,
    "measured": [96 * MIB, 97 * MIB, 98 * MIB, 103 * MIB],
    "overhead": 0.2,
    "own_overhead": 0.01,
    "bound": 0.0,
    "scope": False,
    "gradients_off": 1e-6,
}


def test_tasks_differ() -> None:
    tasks = EXPERIMENT.tasks(False)
    assert len(set(map(key_of, tasks))) == len(tasks) > len(EXPERIMENT.tasks(True))


def test_the_table_counts_what_is_within_the_budget() -> None:
    plain = FOUND | {"budget": "plain", "measured": [99 * MIB]}
    rows = (
        Row(task={"network": "A"}, result={"rows": [plain, FOUND, {"budget": "45%", "failed": "why"}]}),
        Row(task={"network": "B"}, result={"failed": "Error: why"}),
    )
    said = EXPERIMENT.markdown(Results(experiment=EXPERIMENT.name, rows=rows))
    assert "Of 2 questions, 1 have a list" in said
    assert "the usual peak of 1 is within the budget, the highest of all runs of 0." in said
    assert (
        "within 3% of some run's for 2 of 2 steps, the highest run is more than that above it for 1." in said
    )
    assert "works in `fit` for 0. Gradients differ by at most 1e-06" in said
    assert "| A | 60% | 2 layers, a … b | 99.0 | 97.0 | 103.0 | 103% | +20.0% | +1.0% | +0.0% | no |" in said
    assert "| A | 45% | no list found |" in said
    assert "| A | plain | nothing | 99.0 | 99.0 | 99.0 |" in said
    assert "- B: Error: why" in said

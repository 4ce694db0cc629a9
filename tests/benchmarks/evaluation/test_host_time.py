"""The host's time becomes a table; its steps are measured on real networks."""

from __future__ import annotations

import pytest

from evaluation.host_time import EXPERIMENT
from evaluation.results import Results, Row


def test_each_way_has_its_mean_and_a_failure_is_named() -> None:
    found = {"plain_s": 4e-3, "step_s": 3e-3, "ratio": 0.75, "ops": 1000}
    rows = [
        Row(task={"network": "A", "way": "enable"}, result=found),
        Row(task={"network": "B", "way": "enable"}, result=found | {"ratio": 0.85}),
        Row(task={"network": "C", "way": "enable"}, result={"failed": "ValueError: why"}),
        Row(task={"network": "A", "way": "compile_step"}, result=found | {"ratio": 1.5}),
    ]
    said = EXPERIMENT.markdown(Results(experiment="host-time", rows=tuple(rows)))
    assert "**`enable`**: 0.80 of plain PyTorch's time on average of 2 networks." in said
    assert "| A | 4.00 | 3.00 | 0.75 | 1,000 | 3.0 |" in said
    assert "**`compile_step`**: 1.50" in said
    assert "- C: ValueError: why" in said


@pytest.mark.parametrize("way", ["enable", "compile_step"])
def test_a_planned_step_is_timed_beside_a_plain_one(printed, way: str) -> None:
    task = {"network": "U-Net", "way": way, "pairs": 2}
    found = printed(f"import json; from steps.torch_host import measure; print(json.dumps(measure({task})))")
    assert found["ratio"] > 0
    assert found["ops"] > 100

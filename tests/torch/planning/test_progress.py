"""Planning reports its stages in order, and logs every plan as information."""

from __future__ import annotations

import logging

import pytest
import torch

import checkmate


def test_stages_are_reported_in_order_and_a_second_kind_of_inputs_is_no_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    steps: list[str] = []
    compiled = checkmate.torch.compile(
        torch.nn.Linear(11, 13),  # no other test has timed its ops in this process
        "100%",
        dynamic=False,
        cache=False,
        on_progress=lambda report: steps.append(report.step),
    )
    with caplog.at_level(logging.INFO, "checkmate_torch"):
        for dtype in (torch.float32, torch.bfloat16):
            compiled.to(dtype)(torch.ones(3, 11, dtype=dtype)).sum().backward()
    first = [steps.index(stage) for stage in ("capturing the model", "tracing forward and backward pass")]
    first += [next(k for k, step in enumerate(steps) if step.startswith("timing op 1 of"))]
    first += [steps.index("solving")]
    assert first == sorted(first)
    levels = {r.getMessage()[:6]: r.levelname for r in caplog.records if r.getMessage().startswith("plan ")}
    assert levels == {"plan 1": "INFO", "plan 2": "INFO"}

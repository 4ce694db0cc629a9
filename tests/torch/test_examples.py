"""The example for PyTorch trains within its budget, as the loop without Checkmate would."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_a_small_vision_transformer_trains_within_its_budget(capsys: pytest.CaptureFixture[str]) -> None:
    main = runpy.run_path(str(EXAMPLES / "train_vit.py"))["main"]
    losses = main("60%", steps=8)
    assert losses[-1] < losses[0]
    said = capsys.readouterr().out
    lines = re.findall(r"(?:budget|predicted peak|measured peak) +([\d.]+) MiB", said)
    budget, peak, measured = map(float, lines)
    assert measured <= peak * 1.01
    assert peak <= budget

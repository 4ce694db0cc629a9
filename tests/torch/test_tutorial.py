"""The tutorial for PyTorch runs unchanged, and its statements hold."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "docs" / "tutorial" / "five-minutes-with-pytorch.py"

pytestmark = pytest.mark.measured


def test_five_minutes_with_pytorch(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    left = runpy.run_path(str(SOURCE))
    assert left["losses"] == left["plain_losses"]  # "these are the losses of the plain model"
    assert left["meter"].peak <= left["budget"] < left["plain_meter"].peak
    assert left["step"].plans[0].solution.overhead > 0
    assert left["last"] < left["first"]
    said = capsys.readouterr().out
    for words in ("measured peak", "bytes saved", "the least budget known to work is"):
        assert words in said

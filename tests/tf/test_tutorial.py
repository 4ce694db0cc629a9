"""The tutorial for Keras runs unchanged, and its statements hold."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "docs" / "tutorial" / "five-minutes-with-keras.py"

pytestmark = pytest.mark.measured


def test_five_minutes_with_keras(capsys: pytest.CaptureFixture[str]) -> None:
    left = runpy.run_path(str(SOURCE))
    assert [*left["history"].history] == ["accuracy", "loss"]
    assert left["meter"].peak <= left["budget"] < left["plain_meter"].peak
    assert left["prediction"].shape == (32, 10)
    assert left["last"] < left["first"]
    printed = capsys.readouterr().out
    for words in ("predicted peak", "bytes saved", "the least budget known to work is"):
        assert words in printed

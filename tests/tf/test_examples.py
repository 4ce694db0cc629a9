"""The examples run unchanged."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.measured


def test_the_quick_start_of_the_paper(capfd: pytest.CaptureFixture[str]) -> None:
    main = runpy.run_path(str(EXAMPLES / "keras_quick_start.py"))["main"]
    assert len(main("80%", batches=3)) == 3
    assert "predicted peak" in "".join(capfd.readouterr())

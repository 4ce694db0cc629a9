"""No long searches: these are tests of the kit itself."""

from __future__ import annotations

import pytest

from checkmate.testing.conformance import harness


@pytest.fixture(autouse=True)
def _no_long_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Don't shrink: only the names of failing checks matter."""
    monkeypatch.setattr(harness, "SHRINKING_S", 0.2)

"""The solver tries 300 schedules for each problem: the kit draws fewer problems than it does for others."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _fewer_problems(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request.cls, "examples", min(request.cls.examples, 15))

"""Runs every check of a conformance class, and says which fail: for tests of the kit itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from checkmate.testing.conformance import harness


@pytest.fixture(autouse=True)
def _no_long_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Don't shrink: only the names of failing checks matter."""
    monkeypatch.setattr(harness, "SHRINKING_S", 0.2)


@pytest.fixture(scope="session")
def failing() -> Callable[..., dict[str, str]]:
    """Names of the checks that fail, without ``test_``, and their messages; skipped ones pass."""

    def failing(case: object, only: str = "", but: str = "") -> dict[str, str]:
        messages = {}
        for name in (name for name in dir(case) if name.startswith("test_")):
            if name == f"test_{but}" or (only and name != f"test_{only}"):
                continue
            try:
                getattr(case, name)()
            except pytest.fail.Exception as failure:
                messages[name.removeprefix("test_")] = str(failure)
            except pytest.skip.Exception:
                pass
        return messages

    return failing

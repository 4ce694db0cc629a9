"""The plugin: a frontend and an executor; their first use checks the release and keeps TensorFlow quiet."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

from checkmate.plugins import FRONTENDS

LEVEL = "TF_CPP_MIN_LOG_LEVEL"


class Tracing:
    """Replaces the frontend, which would import TensorFlow."""

    def trace(self, program: object) -> object:
        """Trace nothing."""
        return program


@pytest.fixture(autouse=True)
def _no_frontend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "checkmate_tf.adapters.frontend", SimpleNamespace(Frontend=Tracing))  # type: ignore[arg-type]


def test_the_frontend_is_offered_by_the_name_of_its_option() -> None:
    assert "tf" in [spec.name for spec in FRONTENDS.specs()]


@pytest.mark.parametrize(("before", "after"), [(None, "1"), ("0", "0")])
def test_the_command_line_hides_messages_of_the_build_unless_the_user_has_set_a_level(
    before: str | None, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LEVEL, before or "")  # restored afterwards, in both cases
    if before is None:
        del os.environ[LEVEL]
    assert isinstance(FRONTENDS.load("tf"), Tracing)
    assert os.environ[LEVEL] == after

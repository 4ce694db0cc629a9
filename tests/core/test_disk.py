"""What is kept on disk: where, and whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from checkmate.disk import cache_directory, replace_file


def test_where_the_variable_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path))
    assert cache_directory() == tmp_path


@pytest.mark.parametrize("value", [None, ""])
def test_without_the_variable_it_is_the_users_cache(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    platformdirs = pytest.importorskip("platformdirs")
    monkeypatch.delenv("CHECKMATE_CACHE_DIR", raising=False)
    if value is not None:
        monkeypatch.setenv("CHECKMATE_CACHE_DIR", value)
    assert cache_directory() == platformdirs.user_cache_path("checkmate", appauthor=False)


def test_a_file_is_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "kept.json"
    for content in (b"old", b"new"):
        replace_file(file, content)
        assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("kept.json", content)]

    def fail(*_: object) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="gone"):
        replace_file(file, b"newer")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("kept.json", b"new")]

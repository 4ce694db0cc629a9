"""The lists that divide the tests name files and folders that exist."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def missing(entries: list[str]) -> list[str]:
    return [entry for entry in entries if not (ROOT / entry.partition("::")[0]).exists()]


def test_every_path_of_the_lists_exists() -> None:
    lists = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["checkmate"]
    assert {"needs-tensorflow", "needs-trainers"} == set(lists)
    assert [missing(entries) for entries in lists.values()] == [[], []]


def test_every_path_of_the_nightly_list_exists() -> None:
    lines = (ROOT / "tests" / "nightly.txt").read_text(encoding="utf-8").splitlines()
    entries = [line for line in lines if line and not line.startswith("#")]
    assert len(entries) > 20
    assert missing(entries) == []

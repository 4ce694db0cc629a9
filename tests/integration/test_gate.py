"""The lists in pyproject.toml that divide the tests name files and folders that exist."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_path_of_the_lists_exists() -> None:
    lists = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["checkmate"]
    assert {"nightly", "needs-tensorflow", "needs-trainers"} == set(lists)
    paths = {entry.partition("::")[0] for entries in lists.values() for entry in entries}
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []

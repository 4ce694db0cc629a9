"""The path of the processes that we start: where this one imports from, less the current folder."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from checkmate_solvers import isolation


def test_our_own_folder_is_on_its_path_even_if_it_is_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Installed there with ``pip install --target .``: after the standard library, so nothing hides that."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(isolation, "__file__", str(tmp_path / "checkmate_solvers" / "isolation.py"))
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), "lib", os.path.dirname(json.__file__)])
    path = isolation.isolated_python("")[1]["PYTHONPATH"].split(os.pathsep)
    assert str(tmp_path) in path[1:]
    assert all(os.path.isabs(folder) for folder in path)

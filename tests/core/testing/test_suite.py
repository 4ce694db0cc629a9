"""The run without files, from an empty folder with warnings as errors: checks and refusals."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

PLUGIN = ("-m", "pytest", "-p", "checkmate.testing.plugin")
SUITE = (*PLUGIN, "--pyargs", "checkmate.testing.suite", "-W", "error", "--checkmate-examples=3")


def run(folder: Path, *options: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, *SUITE, *options], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_a_solver_is_checked_by_its_name(tmp_path: Path) -> None:
    code, output = run(tmp_path, "--checkmate-solver=keep-all", "--checkmate-solver=first-fit", "-v")
    assert code == 0, output
    for name in ("keep-all", "first-fit"):
        assert f"test_valid[{name}] PASSED" in output
    assert "TestCostModel" not in output


def test_a_check_that_takes_long_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "talkative.py").write_text(
        "def pytest_configure(config):\n"
        "    from checkmate.testing.conformance import harness\n"
        "    harness.PROGRESS_S = 0.0\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    code, output = run(tmp_path, "-p", "talkative", "--checkmate-solver=keep-all", "-k", "test_valid")
    assert code == 0, output
    assert "test_valid[keep-all]: example 2 of up to " in output


def test_without_a_name_there_is_nothing_to_check(tmp_path: Path) -> None:
    code, output = run(tmp_path)
    assert code != 0
    assert "--checkmate-solver NAME" in output
    assert "keep-all" in output


@pytest.mark.parametrize("kind", ["solver", "cost-model", "exporter"])
def test_an_unknown_name_is_an_error_that_lists_the_known_ones(tmp_path: Path, kind: str) -> None:
    code, output = run(tmp_path, f"--checkmate-{kind}", "everst")
    assert code == 4
    assert "'everst'" in output
    assert "installed: [" in output
    assert "Traceback" not in output


def test_examples_are_at_least_one(tmp_path: Path) -> None:
    code, output = run(tmp_path, "--checkmate-solver=keep-all", "--checkmate-examples=0")
    assert (code, "must be ≥ 1" in output) == (4, True)


def test_pytest_loads_the_plugin_only_where_it_is_asked_to() -> None:
    assert not [entry for entry in metadata.entry_points(group="pytest11") if "checkmate" in entry.value]

"""Loading in a process: a failure, crash or hang is named, whatever foreign code prints."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from checkmate.cli.findings import _LOAD_SOLVERS, load_errors

BROKEN = {
    "raises": "raise RuntimeError('broken\\non purpose')",
    "exits": "raise SystemExit(0)",
    "dies": "import os; os._exit(7)",
    "hangs": "import time; time.sleep(600)",
    "absent": "import surely_not_there",
    "prints": "import os; print('loaded'); os.write(1, b'loaded')",
}


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, code in BROKEN.items():
        (tmp_path / f"probed_{name}.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", tmp_path.name)  # a relative path must still be found
    monkeypatch.chdir(tmp_path.parent)
    monkeypatch.setenv("CHECKMATE_PLUGINS", "")


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("raises", "on purpose"),
        ("exits", "it ended the process with exit code 0"),
        ("dies", "it ended the process with exit code 7"),
        ("absent", "ModuleNotFoundError: No module named 'surely_not_there'"),
        ("prints", ""),
    ],
)
def test_a_failure_is_told_in_its_last_line(name: str, error: str) -> None:
    assert load_errors(f"import probed_{name}") == ([error] if error else [])


@pytest.mark.usefixtures("broken")
def test_each_solver_is_tried_whatever_the_others_do() -> None:
    errors = load_errors(_LOAD_SOLVERS.format(names=["no-such-solver", "keep-all", "nor-this"]))
    assert [error.partition(";")[0] for error in errors] == [
        "no solver 'no-such-solver'",
        "no solver 'nor-this'",
    ]


def test_a_solver_without_its_optional_library_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lacking.py").write_text(
        "from checkmate.errors import MissingDistributionError\n"
        "from checkmate.plugins import SolverSpec, hookimpl\n"
        "def _load(): raise MissingDistributionError('Tools is not installed', name='Tools')\n"
        "@hookimpl\n"
        "def checkmate_register_solvers():\n"
        "    return [SolverSpec(name='lacking', summary='does', load=_load, requires=('it[tools]',))]\n"
    )
    folder = tmp_path / "lacking-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: lacking\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[checkmate]\nlacking = lacking\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", ":".join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]))
    monkeypatch.setenv("CHECKMATE_PLUGINS", "lacking")
    errors = load_errors(_LOAD_SOLVERS.format(names=["lacking"]))
    assert errors == ["not installed (optional): Tools (it[tools])"]


@pytest.mark.usefixtures("broken")
def test_a_load_that_hangs_is_ended() -> None:
    assert load_errors("import probed_hangs", time_limit=3) == ["it did not load within 3 s"]


@pytest.mark.usefixtures("broken")
def test_nothing_of_the_current_folder_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name in ("json", "subprocess", "msgspec", "numpy", "sitecustomize"):
        (tmp_path / "here" / f"{name}.py").write_text("raise RuntimeError('of the current folder')")
    monkeypatch.delenv("PYTHONPATH")
    assert load_errors(_LOAD_SOLVERS.format(names=["keep-all"])) == []

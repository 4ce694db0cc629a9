"""``checkmate warm-up``: afterwards the local search is compiled, or the reason why not is shown."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from checkmate import SolverError
from checkmate.cli.app import app
from checkmate_solvers.machine import compilation


def test_the_place_of_the_machine_code_is_shown() -> None:
    done = CliRunner().invoke(app, ["warm-up"])
    assert (done.exit_code, str(compilation.folder()) in done.output) == (0, True)
    assert compilation.is_compiled()


def test_a_failed_compilation_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise SolverError("the local search has no machine code: compiling it failed")

    monkeypatch.setattr("checkmate_solvers.machine.code.machine_code", broken)
    done = CliRunner().invoke(app, ["warm-up"])
    assert (done.exit_code, done.output) == (
        2,
        "Error: the local search has no machine code: compiling it failed\n",
    )

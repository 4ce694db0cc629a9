"""Machine code: compiled once on a machine, beside the solvers; kept where this user alone can write."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import platformdirs
import pytest

from checkmate import (
    DFGraph,
    InfeasibleBudgetError,
    Problem,
    SolverError,
    floor,
    generators,
    keep_all_peak,
    solve,
)
from checkmate_solvers.auto import Auto
from checkmate_solvers.local_search import LocalSearch
from checkmate_solvers.machine import code, compilation
from checkmate_solvers.machine.arrays import ANY_BUDGET, state_of
from checkmate_solvers.machine.code import available, is_awaited, machine_code

COMPILED = pytest.mark.skipif(compilation.is_interpreted(), reason="nothing is compiled")
HITS = """
from checkmate_solvers.machine.code import machine_code
stats = machine_code().stats
print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
"""
GRAPH = generators.residual(8)
HALF = Problem(graph=GRAPH, budget=keep_all_peak(GRAPH) // 2, time_limit=1)


@pytest.fixture
def cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    """A machine where nothing was compiled, and where compiling never ends; yields what was started."""
    started: list[list[str]] = []

    class Endless:
        def __init__(self, command: list[str], **_: object) -> None:
            started.append(command)

        def poll(self) -> None:
            return None

    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda *_, **__: str(tmp_path))
    monkeypatch.setattr(compilation.subprocess, "Popen", Endless)
    monkeypatch.setattr(compilation, "_started", [])
    monkeypatch.setattr(code, "_here", code._MachineCode())
    monkeypatch.setattr(compilation.atexit, "register", lambda *_, **__: None)
    compilation.folder.cache_clear()
    yield started
    compilation.folder.cache_clear()


@COMPILED
def test_a_second_process_compiles_nothing() -> None:
    run = subprocess.run([sys.executable, "-c", HITS], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["1", "0"]


@COMPILED
def test_solvers_answer_while_it_is_being_compiled(cold: list[list[str]], caplog) -> None:
    with caplog.at_level(logging.WARNING):
        for solver in (Auto(), Auto(), LocalSearch()):
            solution = solver.solve(HALF)
            assert solution.schedule is not None
            assert solution.provisional
    assert len(cold) == 1
    assert is_awaited()
    assert caplog.text.count("in the background") == 1


@COMPILED
@pytest.mark.usefixtures("cold")
def test_the_least_budget_is_found_without_it_and_then_met() -> None:
    least = Auto().minimum_budget(Problem(graph=GRAPH, budget=keep_all_peak(GRAPH)))
    assert least.peak is not None
    assert least.peak < HALF.budget
    again = Auto().solve(Problem(graph=GRAPH, budget=least.peak, start=least.schedule, time_limit=2))
    assert again.schedule is not None


@COMPILED
@pytest.mark.usefixtures("cold")
def test_where_no_schedule_is_found_without_it_the_error_says_so() -> None:
    graph = generators.unet(8)
    with pytest.raises(InfeasibleBudgetError, match="without the local search, which was not compiled"):
        solve(graph, floor(graph).size, time_limit=1)


@COMPILED
def test_without_time_to_load_it_nothing_is_started(cold: list[list[str]]) -> None:
    assert available(0.01) is None
    assert not cold


@COMPILED
def test_a_compiler_that_fails_is_named_once_and_not_started_again(
    cold: list[list[str]], monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    assert available(9) is None
    monkeypatch.setattr(compilation, "is_compiling", lambda: False)
    assert available(9) is None
    assert available(9) is None
    assert len(cold) == 1
    assert caplog.text.count("compiling it failed") == 1
    with pytest.raises(SolverError, match="compiling it failed"):
        machine_code()


@COMPILED
def test_a_compiler_that_ends_between_two_questions_has_not_failed(
    cold: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert available(9) is None
    ended: list[bool] = []
    monkeypatch.setattr(compilation, "is_compiling", lambda: bool(ended.append(True)))
    monkeypatch.setattr(compilation, "is_compiled", lambda: bool(ended))
    monkeypatch.setattr(code, "_load", lambda: "machine code")
    assert available(9) == "machine code"
    assert len(cold) == 1


@COMPILED
@pytest.mark.usefixtures("cold")
def test_machine_code_that_can_not_be_loaded_is_deleted(monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    kept = compilation.folder() / "local" / "entry.nbc"
    kept.parent.mkdir()
    kept.write_bytes(b"\0")

    def broken(_: object) -> None:
        raise EOFError("Ran out of input")

    monkeypatch.setattr("checkmate_solvers.machine.entry.try_out", broken)
    assert available(9) is None
    assert "EOFError: Ran out of input" in caplog.text
    assert not kept.exists()


@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
@pytest.mark.usefixtures("cold")
def test_others_can_not_write_where_it_is_kept(tmp_path: Path) -> None:
    (tmp_path / "machine-code").mkdir(mode=0o777)
    (tmp_path / "machine-code").chmod(0o777)
    place = compilation.folder()
    for folder in (place, place.parent):
        assert folder.stat().st_mode & 0o077 == 0
        assert folder.stat().st_uid == os.getuid()


@pytest.mark.usefixtures("cold")
@pytest.mark.parametrize("why", ["a file is in the way", "another user's"])
def test_where_none_can_be_kept_it_lives_as_long_as_the_process(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    if why == "another user's":
        monkeypatch.setattr(compilation.os, "getuid", lambda: 4711, raising=False)
    else:
        (tmp_path / "machine-code").write_text("")
    place = compilation.folder()
    assert place.is_dir()
    assert tmp_path not in place.parents
    assert "kept only until this process exits" in caplog.text
    place.rmdir()


@COMPILED
@pytest.mark.parametrize("setting", ["cache_dir", "cache_locator_classes"])
def test_numbas_own_settings_do_not_move_it(setting: str, tmp_path: Path) -> None:
    """Neither from the environment nor from a file of the current folder."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    value = str(elsewhere) if setting == "cache_dir" else "hostile.Locator"
    (tmp_path / ".numba_config.yaml").write_text(f"{setting}: {value}\n")
    (tmp_path / "hostile.py").write_text("raise SystemExit('it ran')\n")
    environment = os.environ | {f"NUMBA_{setting.upper()}": value}
    for env in (environment, None):
        command = [sys.executable, "-P", "-c", HITS]
        run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env=env)
        assert run.stdout.split() == ["1", "0"]
    assert not any(elsewhere.iterdir())


def test_an_empty_sequence_is_a_sequence(work: Callable[..., object]) -> None:
    """Nothing needs to run where no output is asked for."""
    graph = DFGraph.from_nodes(cost=[1], size=[1], deps=[[]], outputs=[])
    state = state_of(graph, fixed_order=False, seed=0)
    assert work(state, np.zeros(0, dtype=np.int64), ANY_BUDGET, 1, 5, 1.0, 1) == (True, 0)

"""The command as people run it: small graphs, one second, real processes."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from checkmate import DFGraph, generators, write_graph
from results_file import write_results
from solvers.records import Results, Row, read_results

RUN = Path(__file__).parents[3] / "benchmarks" / "solvers" / "run.py"
BAD_SOLVERS = """
import os, signal, time
from checkmate import Progress, Schedule, Solution

class Dies:
    def solve(self, problem):
        if problem.graph.name == "asked":
            problem.on_progress(Progress(123.0, 1.0, 0.0, "so far"))
            os.kill(os.getpid(), signal.SIGSEGV)
        return Solution.unknown(problem)

class Raises:
    def solve(self, problem):
        raise ValueError("no idea")

class Sleeps:
    def solve(self, problem):
        while problem.graph.name == "asked":
            try:
                time.sleep(60)
            except BaseException:
                pass
        return Solution.unknown(problem)

class Swallows:
    def solve(self, problem):
        return bytearray(2**31)

class Needs:
    def __init__(self):
        import a_package_that_nobody_has
"""


def run(*arguments: str | Path, path: Path | None = None, code: int = 0) -> str:
    """Its standard output."""
    environment = os.environ | ({"PYTHONPATH": str(path)} if path else {})
    command = [sys.executable, str(RUN), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=300)
    assert done.returncode == code, done.stderr
    return done.stdout


def measured(output: Path, *arguments: str | Path, path: Path | None = None) -> Results:
    run("-o", output, "--time-limit", "1", *arguments, path=path)
    return read_results(output)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two graphs as files."""
    graphs = tmp_path / "graphs"
    graphs.mkdir()
    write_graph(graphs / "chain.json", generators.chain(8))
    write_graph(graphs / "layered.json", generators.random_layered(20, seed=1, training=True))
    return graphs


def test_every_graph_budget_and_solver_gets_a_row(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    output = tmp_path / "out.json"
    found = measured(
        output, "--graphs", folder, "--budgets", "0.5", "1", "--solvers", "first-fit", "keep-all", "nobody"
    )
    assert [row.key[:3] for row in found.rows] == [
        (graph, share, solver)
        for graph in ("chain", "layered")
        for share in (0.5, 1.0)
        for solver in ("first-fit", "keep-all", "nobody")
    ]
    by_key: dict[Any, Row] = {row.key: row for row in found.rows}
    kept = by_key["chain", 1.0, "keep-all", 0]
    assert (kept.outcome, kept.cost, kept.bound, kept.peak) == ("optimal", 17.0, 17.0, kept.budget)
    assert by_key["chain", 0.5, "keep-all", 0].outcome == "unknown"
    fitted = by_key["chain", 0.5, "first-fit", 0]
    assert fitted.outcome == "feasible"
    assert fitted.peak is not None
    assert fitted.peak <= fitted.budget == 5
    assert fitted.final_s is not None
    assert 0 < (fitted.rss_before or 0) <= (fitted.peak_rss or 0)
    assert {row.outcome for row in found.rows if row.solver == "nobody"} == {"not installed"}
    session = found.sessions[0]
    assert {"cpu", "python", "packages", "seeds", "commit", "date", "command"} <= set(session)
    assert str(tmp_path) not in session["command"]
    assert "chain: 17 ops" in output.with_suffix(".txt").read_text(encoding="utf-8")
    assert (tmp_path / "out_cost.png").read_bytes().startswith(b"\x89PNG")


def test_an_interrupted_run_goes_on_where_it_was(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    arguments = ("--graphs", folder, "--budgets", "0.6", "--solvers", "first-fit", "evict-dtr")
    whole = measured(output, *arguments, "--stop-after", "0")
    assert len(whole.rows) == 1  # the first row ends it
    resumed = measured(output, *arguments, "--resume")
    assert resumed.rows[0] == whole.rows[0]
    assert [row.solver for row in resumed.rows] == ["first-fit", "evict-dtr"] * 2
    assert len(resumed.sessions) == 2
    assert "other settings" in _refused("-o", output, "--time-limit", "2", *arguments, "--resume")
    write_graph(folder / "chain.json", generators.chain(9))
    assert "other settings or graphs" in _refused("-o", output, "--time-limit", "1", *arguments, "--resume")


def test_core_rules_run_with_one_seed(folder: Path, tmp_path: Path) -> None:
    arguments = ("--graphs", folder, "--only", "chain:0.6", "--budgets", "0.6", "--seeds", "3", "4")
    found = measured(tmp_path / "out.json", *arguments, "--solvers", "first-fit", "nobody")
    seeds = [row.key[2:] for row in found.rows]
    assert seeds[0] == ("first-fit", 3)
    assert seeds[1:] == [("nobody", 3), ("nobody", 4)]


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_a_bad_solver_is_a_row(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(BAD_SOLVERS)
    graphs = tmp_path / "graphs"
    graphs.mkdir()
    write_graph(graphs / "asked.json", _named("asked"))
    names = [f"bad:{name}" for name in ("Dies", "Raises", "Sleeps", "Swallows", "Needs")]
    found = measured(
        tmp_path / "out.json",
        *("--graphs", graphs, "--budgets", "0.5", "--late", "0.2", "--memory", "1", "--solvers"),
        *(*names, "first-fit"),
        path=tmp_path,
    )
    rows = {row.solver.removeprefix("bad:"): row for row in found.rows}
    assert {name: row.outcome for name, row in rows.items()} == {
        "Dies": "crashed",
        "Raises": "failed",
        "Sleeps": "killed",
        "Swallows": "failed",
        "Needs": "not installed",
        "first-fit": "feasible",
    }
    assert "SIGSEGV" in rows["Dies"].note
    assert "reported a cost of 123" in rows["Dies"].note
    assert "no idea" in rows["Raises"].note
    assert "MemoryError" in rows["Swallows"].note
    assert "a_package_that_nobody_has" in rows["Needs"].note


def test_known_costs_choose_the_cases_and_are_compared_with(folder: Path, tmp_path: Path) -> None:
    known = tmp_path / "known.json"
    known.write_text(json.dumps({"chain:0.5": {"best": 1.2}, "elsewhere:0.5": {"best": 1.0}}))
    output = tmp_path / "out.json"
    found = measured(output, "--graphs", folder, "--known", known, "--solvers", "first-fit")
    assert found.cases() == [("chain", 0.5)]
    assert found.best("chain", 0.5) == 1.2
    assert "not measured" in run("--summary", output)  # of our own solver there is no row


def test_results_are_told_as_tables(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    measured(output, "--graphs", folder, "--budgets", "1", "--solvers", "keep-all")
    assert "| keep-all | 2 of 2 | 1.000 | 1.000 |" in run("--markdown", output)


def test_nothing_to_measure_is_said(tmp_path: Path) -> None:
    assert "no case" in _refused("--graphs", tmp_path)


def test_a_file_survives_being_read_and_written(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    found = measured(output, "--graphs", folder, "--budgets", "0.5", "--solvers", "first-fit", "nobody")
    before = output.read_bytes()
    write_results(output, found)
    assert output.read_bytes() == before


def _refused(*arguments: str | Path) -> str:
    command = [sys.executable, str(RUN), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 2
    return done.stderr


def _named(name: str) -> DFGraph:
    return dataclasses.replace(generators.chain(8), name=name)

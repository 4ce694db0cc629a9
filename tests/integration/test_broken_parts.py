"""A broken optional part breaks only itself: each in turn raises when imported, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from checkmate import DFGraph, generators, write_graph

FAILURES = (
    "raise RuntimeError('broken on purpose')",
    "raise AttributeError('broken on purpose')",
    "raise SystemExit('broken on purpose')",
)
SOLVE = ("solve", "graph.json", "--budget", "100%", "--solver", "heuristics")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    graph = DFGraph.from_nodes(cost=[1] * 4, size=[8] * 4, deps=[[], [0], [1], [0, 2]], name="chain")
    write_graph(tmp_path / "graph.json", graph)
    return tmp_path


def checkmate(folder: Path, part: str, failure: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    broken = folder / "broken"
    broken.mkdir(exist_ok=True)
    (broken / f"{part}.py").write_text(failure)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "checkmate", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(broken), "CHECKMATE_CACHE_DIR": str(folder / "cache")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done


def cases(*parts: str) -> pytest.MarkDecorator:
    pairs = [(part, FAILURES[k % len(FAILURES)]) for k, part in enumerate(parts) if find_spec(part)]
    return pytest.mark.parametrize(("part", "failure"), pairs, ids=[part for part, _ in pairs])


@cases("matplotlib", "ortools", "scipy")
def test_commands_that_do_not_need_the_library_work(folder: Path, part: str, failure: str) -> None:
    for command in (("show", "graph.json"), SOLVE, ("plugins",)):
        done = checkmate(folder, part, failure, *command)
        assert (done.returncode, done.stderr) == (0, "")
    solved = checkmate(folder, part, failure, *SOLVE, "-o", "schedule.json")
    assert solved.returncode == 0
    assert checkmate(folder, part, failure, "simulate", "graph.json", "schedule.json").returncode == 0


@cases("scipy")
def test_auto_goes_on_with_one_warning(folder: Path, part: str, failure: str) -> None:
    """Without SciPy the built-in heuristics answer."""
    write_graph(folder / "graph.json", generators.residual(8))
    done = checkmate(folder, part, failure, "solve", "graph.json", "--budget", "50%", "--json")
    solved = json.loads(done.stdout)
    assert (done.returncode, solved["solver"]) == (0, "heuristics")
    assert [line.split()[0] for line in done.stderr.splitlines()] == ["Warning:"]
    assert "broken on purpose" in done.stderr
    refused = checkmate(folder, part, failure, "solve", "graph.json", "--budget", "1B", "--json")
    assert refused.returncode == 1
    assert refused.stderr.count("Warning:") == 1


@cases("matplotlib", "ortools", "scipy")
def test_doctor_finds_it(folder: Path, part: str, failure: str) -> None:
    done = checkmate(folder, part, failure, "doctor", "--json")
    problems = [f for f in json.loads(done.stdout)["findings"] if f["level"] == "problem"]
    assert done.returncode == 1
    assert [f["subject"] for f in problems if f["subject"].startswith(f"import {part}")]
    assert all("broken on purpose" in f["text"] for f in problems)


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize(
    "command", [("show", "-o", "x.svg"), ("sweep", "--budgets", "100%", "--plot", "x.svg")]
)
def test_a_picture_without_matplotlib_is_one_clear_line(
    folder: Path, command: tuple[str, ...], failure: str
) -> None:
    arguments = (command[0], "graph.json", *command[1:])
    solver = ("--solver", "keep-all") if command[0] == "sweep" else ()
    done = checkmate(folder, "matplotlib", failure, *arguments, *solver)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: pictures need matplotlib: it fails to load: ")
    assert len(done.stderr.splitlines()) == 1
    assert not (folder / "x.svg").exists()


@cases("rich", "click")
def test_the_command_line_names_missing_libraries(folder: Path, part: str, failure: str) -> None:
    done = checkmate(folder, part, failure, "show", "graph.json")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "broken on purpose" in done.stderr


@cases("rich")
def test_doctor_works_without_rich_and_says_so(folder: Path, part: str, failure: str) -> None:
    done = checkmate(folder, part, failure, "doctor")
    assert (done.returncode, done.stderr) == (1, "")
    (problem,) = (line for line in done.stdout.splitlines() if line.startswith("problem"))
    assert "broken on purpose" in problem

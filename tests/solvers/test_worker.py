"""The second process: what it finds is true, and without it nothing is lost but that."""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checkmate import DFGraph, Problem, Status
from checkmate_solvers import auto
from checkmate_solvers.auto import Auto
from checkmate_solvers.search import Incumbent
from checkmate_solvers.worker import Worker

SEARCHING = Auto(without=("exhaustive",))
"""It has work for a second process even on small graphs."""
GRAPH = DFGraph.from_nodes(
    cost=[1, 3, 1, 3, 1, 3, 1, 3, 1],
    size=[1] * 9,
    deps=[[], [0], [1], [0, 2], [3], [3, 4], [2, 5], [1, 6], [0, 7]],
)
PROBLEM = Problem(graph=GRAPH, budget=5, fixed_order=True, time_limit=60)
PATIENCE_S = 60.0


def test_it_proves_and_finds_the_same_as_auto() -> None:
    best, reported = Incumbent(PROBLEM), []
    best.keep_if_better = lambda sequence, _: reported.append(sum(GRAPH.ops[v].cost for v in sequence))
    other = Worker(best, PROBLEM, ())
    deadline = time.monotonic() + PATIENCE_S
    try:
        while other.running and time.monotonic() < deadline:
            other.poll(0.1)
    finally:
        other.stop()
    alone = SEARCHING.solve(PROBLEM)
    assert other.finished
    assert best.bound == alone.bound
    assert reported == sorted(reported, reverse=True)
    assert alone.bound <= min(reported)


def test_auto_takes_over_its_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three findings one has no schedule, one a schedule that is too large."""
    alone = SEARCHING.solve(PROBLEM)
    assert alone.schedule is not None
    keep_all, best = list(range(GRAPH.n_ops)), alone.schedule.sequence.tolist()

    class Knows(Worker):
        def __init__(self, *asked: Any) -> None:
            self._best, self.running, self.finished = asked[0], True, True
            self._findings = queue.SimpleQueue()
            self._findings.put((0.0, keep_all, "too large"))
            self._findings.put((0.0, best, "elsewhere"))
            self._findings.put((alone.bound, None, "elsewhere"))

        def stop(self) -> None:
            self.running = False

    monkeypatch.setattr(auto, "Worker", Knows)
    solution = SEARCHING.solve(replace(PROBLEM, threads=2))
    assert (solution.cost, solution.bound, solution.status) == (alone.cost, alone.bound, Status.OPTIMAL)
    assert solution.origin["bound"] == "elsewhere"


@pytest.mark.parametrize("program", ["raise SystemExit(3)", "print('no JSON')", "print('{}')"])
def test_if_it_dies_nothing_is_lost(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr("checkmate_solvers.worker._PROGRAM", program)
    alone = SEARCHING.solve(PROBLEM)
    solution = SEARCHING.solve(replace(PROBLEM, threads=2))
    assert (solution.cost, solution.bound) == (alone.cost, alone.bound)


@pytest.mark.skipif(shutil.which("ps") is None, reason="asks ps")
def test_it_ends_when_the_first_process_does(tmp_path) -> None:
    pid = tmp_path / "pid"
    script = (
        "import os, sys\n"
        "from checkmate import Problem, floor, generators\n"
        "from checkmate_solvers.search import Incumbent\n"
        "from checkmate_solvers.worker import Worker\n"
        "graph = generators.residual(27)\n"
        "problem = Problem(graph=graph, budget=8 * floor(graph).size, time_limit=600)\n"
        "worker = Worker(Incumbent(problem), problem, ())\n"
        f"open({str(pid)!r}, 'w').write(str(worker._process.pid))\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and _alive(int(pid.read_text())):
        time.sleep(0.05)
    assert not _alive(int(pid.read_text()))


def _alive(pid: int) -> bool:
    """A zombie, a process that ended and was not waited for, is not alive."""
    listed = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return bool(listed.stdout.strip()) and not listed.stdout.strip().startswith("Z")


def test_a_script_without_a_main_guard_may_ask_for_it() -> None:
    """Nothing of the script runs twice."""
    script = (
        "from checkmate import generators, solve\n"
        "print('once')\n"
        "print(solve(generators.chain(8), '60%', threads=2).status)\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["once", "optimal"]


def test_it_takes_no_code_from_the_current_folder(tmp_path: Path) -> None:
    """As in a notebook: the path names that folder in three ways, and so does the variable of the shell."""
    for name in ("json", "signal", "numpy", "checkmate", "checkmate_solvers", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text(f"open('ran', 'a').write('{name} ')")
    script = (
        "import os, sys\n"
        "from checkmate import Problem, generators\n"
        "from checkmate_solvers.search import Incumbent\n"
        "from checkmate_solvers.worker import Worker\n"
        f"os.chdir({str(tmp_path)!r})\n"
        f"sys.path[:0] = ['', '.', {str(tmp_path)!r}]\n"
        "problem = Problem(graph=generators.chain(4), budget=10**9)\n"
        "worker = Worker(Incumbent(problem), problem, ())\n"
        "while worker.running:\n"
        "    worker.poll(60)\n"
        "print(worker.finished)\n"
        "worker.stop()\n"
    )
    path = os.pathsep.join(["", ".", os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": path},
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
    assert not (tmp_path / "ran").exists()

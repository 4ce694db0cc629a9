"""No process stays behind: the parent is killed at a random moment, and soon all its children are gone."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sysconfig
import time
import uuid
from pathlib import Path

import pytest

from checkmate import generators, read_graph, read_schedule, write_graph

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks into /proc")

MARK = "MARK_OF_A_TEST"
PATIENCE_S = 60.0
SOLVE, SWEEP = ("solve", "--budget", "20%"), ("sweep", "--budgets", "0.1:0.3:6", "--jobs", "2")
COMMANDS = {
    "solve": SOLVE,
    "solve with two threads": (*SOLVE, "--threads", "2"),
    "sweep with two jobs": SWEEP,
    "sweep with two jobs of two threads": (*SWEEP, "--threads", "2"),
}


def alive(mark: str) -> list[str]:
    """The commands of all processes with the mark in their environment."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and f"{MARK}={mark}".encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # it has ended, or belongs to another user
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_that_was_started_outlives_the_command(tmp_path: Path, name: str, number: int) -> None:
    delays, mark = random.Random(f"{name} {number}"), str(uuid.uuid4())
    graph, out = tmp_path / "graph.json", tmp_path / "out.json"
    write_graph(graph, generators.residual(27))
    command, *options = COMMANDS[name]
    program = Path(sysconfig.get_path("scripts")) / "checkmate"
    process = subprocess.Popen(
        [program, command, graph, *options, "--time-limit", "600", "-o", out],
        env=os.environ | {MARK: mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        time.sleep(delays.uniform(0.1, 3.0))
        process.send_signal(number)
        process.communicate(timeout=PATIENCE_S)  # until no process has its output open
        deadline = time.monotonic() + PATIENCE_S
        while (left := alive(mark)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert left == []
    finally:
        process.kill()
    assert process.returncode in ({-number} if number == signal.SIGKILL else {-number, 128 + number})
    assert {path.name for path in tmp_path.iterdir()} <= {"graph.json", "out.json"}
    if out.exists() and command == "solve":
        read_schedule(out, read_graph(graph))

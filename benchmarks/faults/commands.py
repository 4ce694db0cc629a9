"""Commands in processes of their own: under packages that fail at import, and killed at random moments."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec

from checkmate import generators, read_graph, read_schedule, write_graph, write_schedule
from faults.fault import Fault
from faults.files import sound

__all__ = ["broken_import", "kill"]

_MILP = "checkmate-milp"
_PACKAGES = ("scipy", "ortools", "matplotlib", "rich")
_CODES = {
    "ImportError": "raise ImportError('libbroken.so.1: cannot open shared object file')",
    "AttributeError": "raise AttributeError(\"module 'numpy' has no attribute 'bool8'\")",
    "SystemError": "raise SystemError('initialization of _internal failed')",
    "SyntaxError": "def broken(",
    "SystemExit": "raise SystemExit(0)",
}
_SOLVE = "solve GRAPH --budget 100% --time-limit 2"
_DRAW, _SOLVE_MILP = "show GRAPH SCHEDULE -o out.svg", f"{_SOLVE} --solver {_MILP}"
_COMMANDS = (
    *("show GRAPH", "show GRAPH SCHEDULE", "show GRAPH SCHEDULE -o out.html", _DRAW),
    *("simulate GRAPH SCHEDULE", f"{_SOLVE} --solver heuristics", _SOLVE, _SOLVE_MILP, "plugins", "doctor"),
)
_NEEDS = {_DRAW: {"matplotlib"}, _SOLVE_MILP: {"scipy", "ortools"}}
"""Packages that a command needs: if one is broken, the exit code is 2 and one line gives the reason."""
_LATEST_S = 3.0
_LONG_COMMANDS = (
    "solve GRAPH --budget 20%",
    "solve GRAPH --budget 20% --threads 2",
    "sweep GRAPH --budgets 0.1:0.3:6 --jobs 2",
    "sweep GRAPH --budgets 60%,90% --jobs 2 --solver heuristics",
)
_SIGNALS = (signal.SIGTERM, signal.SIGKILL, signal.SIGINT)
_OLD = b'"what was there before"'
_PATIENCE_S = 90.0
_MARK = "MARK_OF_A_FAULT"
_MAIN = "import os; from checkmate.cli import main; os.write(2, b'.'); main()"


def broken_import(random: Random, place: Path) -> Fault:
    """A package that is installed, but fails at import, under a command."""
    package, words = random.choice(_PACKAGES), random.choice(_COMMANDS)
    error, code = random.choice(list(_CODES.items()))

    def happen() -> str | None:
        graph, schedule = sound()
        write_graph(place / "GRAPH", graph)
        write_schedule(place / "SCHEDULE", schedule, graph)
        (place / f"{package}.py").write_text(code)
        path = os.pathsep.join(filter(None, [str(place), os.environ.get("PYTHONPATH")]))
        ended = _run(words, place, {"PYTHONPATH": path})
        right = (
            {0, 2} if package in {"rich", *_NEEDS.get(words, ())} else {0, 1} if words == "doctor" else {0}
        )
        if ended.code not in right or "Traceback" in ended.stderr:
            return f"exit {ended.code}: {ended.stdout} {ended.stderr}"
        if ended.code == 2 and not {package, f"'{_MILP}'"} & {*ended.stderr.replace(":", "").split()}:
            return f"the message names neither {package} nor what needs it: {ended.stderr}"
        return f"still there: {ended.left}" if ended.left else None

    return Fault(f"{words}, with a {package} that raises {error}", happen)


def kill(random: Random, place: Path) -> Fault:
    """A signal to a command that solves, in one process or several."""
    words, number = random.choice(_LONG_COMMANDS), random.choice(_SIGNALS)
    delay = random.uniform(0, _LATEST_S)

    def send(process: subprocess.Popen[bytes]) -> None:
        time.sleep(delay)
        process.send_signal(number)

    def happen() -> str | None:
        write_graph(place / "GRAPH", generators.residual(27))
        (place / "out").mkdir()
        (file := place / "out" / "out.json").write_bytes(_OLD)
        ended = _run(f"{words} --time-limit 600 -o out/out.json", place, then=send)
        stopped = number == signal.SIGINT and "this is the best schedule until then" in ended.stderr
        right = {128 + number, *([0] if stopped or "heuristics" in words else [])}
        if ended.code not in right or (number == signal.SIGTERM and "Traceback" in ended.stderr):
            return f"exit {ended.code}: {ended.stderr}"
        if ended.left:
            return f"still there: {ended.left}"
        content = file.read_bytes()
        if content != _OLD and words.startswith("solve"):
            read_schedule(content, read_graph(place / "GRAPH"))
        elif content != _OLD:
            msgspec.json.decode(content)
        beside = [path.name for path in file.parent.iterdir() if path != file]
        return f"left beside: {beside}" if beside and number != signal.SIGKILL else None

    return Fault(f"{words}: {number.name} after {delay:.3f} s", happen)


class _Ended(NamedTuple):
    """The exit code as in a shell (128 + the signal), the output, and processes that remained long after."""

    code: int
    stdout: str
    stderr: str
    left: list[int]


def _run(
    words: str,
    folder: Path,
    environment: dict[str, str] | None = None,
    then: Callable[[subprocess.Popen[bytes]], None] = lambda _: None,
) -> _Ended:
    """Run ``checkmate`` with these arguments in a folder to its end.

    ``then`` is called as soon as ``main`` is about to begin. Python drops some interrupts while it imports
    the package before that, and no code of ours can repeat them.
    """
    mark = str(uuid.uuid4())
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _MAIN, *words.split()],
        cwd=folder,
        env={**os.environ, **(environment or {}), _MARK: mark},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored where tests run behind &
    )
    try:
        assert process.stderr is not None
        os.read(process.stderr.fileno(), 1)
        then(process)
        stdout, stderr = process.communicate(timeout=_PATIENCE_S)  # until every writer has ended
        deadline = time.monotonic() + _PATIENCE_S
        while (left := _marked(mark)) and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        for number in _marked(mark):
            os.kill(number, signal.SIGKILL)
        process.wait()
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    return _Ended(code, stdout.decode(), stderr.decode(), left)


def _marked(mark: str) -> list[int]:
    """The processes with the mark in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"{_MARK}={mark}".encode() in (process / "environ").read_bytes():
                found.append(int(process.name))
        except OSError:  # the process has ended, or is another user's
            continue
    return found

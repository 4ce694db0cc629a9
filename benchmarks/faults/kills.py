"""Kills: SIGINT, SIGTERM and SIGKILL at random moments of commands that solve, in one process or several."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec

from checkmate import generators, read_graph, read_schedule, write_graph
from faults.fault import Fault, FaultClass
from faults.processes import command

__all__ = ["CLASSES"]

_LATEST_S = 3.0
_COMMANDS = (
    ("solve", "--budget", "20%"),
    ("solve", "--budget", "20%", "--threads", "2"),
    ("sweep", "--budgets", "0.1:0.3:6", "--jobs", "2"),
    ("sweep", "--budgets", "60%,90%", "--jobs", "2", "--solver", "heuristics"),
)
_SIGNALS = (signal.SIGTERM, signal.SIGKILL, signal.SIGINT)
_OLD = b'"what was there before"'


def _kills(random: Random, count: int, folder: Path) -> Iterator[Fault]:
    graph = folder / "graph.json"
    write_graph(graph, generators.residual(27))
    for k in range(count):
        words, number, delay = random.choice(_COMMANDS), random.choice(_SIGNALS), random.uniform(0, _LATEST_S)
        place = folder / str(k)
        yield Fault(
            f"{' '.join(words)}: {number.name} after {delay:.3f} s",
            lambda a=(words, number, delay, graph, place): _happen(*a),
        )


def _happen(
    words: tuple[str, ...], number: signal.Signals, delay: float, graph: Path, place: Path
) -> str | None:
    place.mkdir()
    file = place / "out.json"
    file.write_bytes(_OLD)
    name, *options = words

    def kill(process: subprocess.Popen[bytes]) -> None:
        time.sleep(delay)
        process.send_signal(number)

    ended = command(name, graph, *options, "--time-limit", 600, "-o", file, then=kill)
    right = {0, 128 + number} if _may_be_over(words, number, ended.stderr) else {128 + number}
    if ended.code not in right:
        return f"exit {ended.code}: {ended.stderr}"
    if ended.left:
        return f"still there: {ended.left}"
    if number == signal.SIGTERM and "Traceback" in ended.stderr:
        return ended.stderr
    content = file.read_bytes()
    if content != _OLD:
        if name == "solve":
            read_schedule(content, read_graph(graph))
        else:
            msgspec.json.decode(content)
    beside = [path.name for path in place.iterdir() if path != file]
    return f"left beside: {beside}" if beside and number != signal.SIGKILL else None


def _may_be_over(words: tuple[str, ...], number: signal.Signals, said: str) -> bool:
    """Whether exit code 0 is right: the command had ended, or Ctrl-C ended a solve that had a schedule."""
    return "heuristics" in words or (
        number == signal.SIGINT and "this is the best schedule until then" in said
    )


CLASSES = (
    FaultClass(
        name="kills of solve and sweep, in one process and several, at random moments",
        must="the output is the old or a complete new one, no process remains, the exit code is right",
        count=120,
        make=_kills,
        apart=True,
    ),
)

"""Hostile files: graphs and schedules with a part changed, cut off or replaced; paths that are not files."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from click.testing import CliRunner

from checkmate import CheckmateError, DFGraph, Schedule, generators, read_graph, read_schedule, solve
from checkmate.cli.app import app
from checkmate.files.serialize import graph_bytes, schedule_bytes
from faults.fault import Fault, in_time

__all__ = ["hostile_command", "hostile_graph", "hostile_schedule", "mutated", "sound"]

_NUMBERS = (-1, 0, 0.5, -0.0, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63), 10**400, 1e308, math.inf, math.nan)
_TEXTS = ("", "\0", "\x1b[31m", "\ud800", "\u202e", "a\nb", "9" * 5000, "%s{0}", "../../x", "\U0010ffff")
_VALUES = (*_NUMBERS, *_TEXTS, None, True, [], {}, [[]], {"": 0}, [-1], [2**70])
_DEEP = (b"[" * 100_000, b'{"a":' * 100_000, b"\x91" * 100_000, b"[" * 900 + b"]" * 900)


@cache
def sound() -> tuple[DFGraph, Schedule]:
    """The graph and the schedule that files hold."""
    graph = generators.unet(2)
    schedule = solve(graph, "80%", solver="heuristics").schedule
    assert schedule is not None
    return graph, schedule


def hostile_graph(random: Random, _: Path) -> Fault:
    """A mutated graph file."""
    form: Any = random.choice(("json", "msgpack"))
    return _reading(
        mutated(random, graph_bytes(sound()[0], format=form)), lambda content: read_graph(content)
    )


def hostile_schedule(random: Random, _: Path) -> Fault:
    """A mutated schedule file."""
    form: Any = random.choice(("json", "msgpack"))
    (graph, schedule), facts = sound(), {"budget": 1}
    content = mutated(random, schedule_bytes(schedule, graph, facts, format=form))
    return _reading(content, lambda content: read_schedule(content, graph))


def _reading(content: bytes, read: Callable[[bytes], object]) -> Fault:
    def happen() -> str | None:
        try:
            with in_time():
                read(content)
        except CheckmateError as error:
            return None if str(error).isprintable() else f"an error that can't be printed: {error!r}"
        return None

    return Fault(f"{content[:200]!r} …", happen)


def hostile_command(random: Random, place: Path) -> Fault:
    """A command that gets such files, or paths that are no regular files."""
    graph, schedule = place / "graph.json", place / "schedule.json"
    whole = graph_bytes(sound()[0])
    graph.write_bytes(mutated(random, whole) if random.random() < 0.5 else whole)
    schedule.write_bytes(mutated(random, schedule_bytes(sound()[1], sound()[0])))
    files = [_no_file(random, place) if random.random() < 0.2 else file for file in (graph, schedule)]
    command = random.choice(
        (
            ["simulate", *files],
            ["show", *files],
            ["show", *files, "-o", place / "out.html"],
            ["solve", files[0], "--budget", "80%", "--solver", "heuristics", "--time-limit", "1"],
            ["sweep", files[0], "--budgets", "80%,1", "--solver", "keep-all", "--json"],
        )
    )

    def happen() -> str | None:
        with in_time():
            result = CliRunner().invoke(app, list(map(str, command)), prog_name="checkmate")
        if result.exit_code not in (0, 1, 2) or not isinstance(result.exception, SystemExit | None):
            return f"exit {result.exit_code}, {result.exception!r}"
        if "Traceback" in result.output or (result.exit_code == 2 and not result.stderr.strip()):
            return result.output
        return None

    return Fault(" ".join(map(str, command)), happen)


def _no_file(random: Random, place: Path) -> Path:
    """A folder, an empty file, a missing file, a pipe without a writer, endless zeros, a symbolic loop."""
    if not (place / "pipe").exists():
        (place / "empty").write_bytes(b"")
        os.mkfifo(place / "pipe")
        (place / "loop").symlink_to(place / "loop")
    names = ("", "empty", "missing", "pipe", "loop", "/dev/zero", "/proc/self/mem")
    return place / random.choice(names)


def mutated(random: Random, content: bytes) -> bytes:
    """The bytes, changed at random."""
    a, b = sorted(random.randrange(len(content) + 1) for _ in range(2))
    b = min(b, a + random.choice((1, 2, 8, 10_000)))
    middle = random.choice((b"", content[a:b] * 2, random.randbytes(b - a), random.choice(_DEEP)))
    if random.random() < 0.4:
        return _with_other_value(random, content)
    return content[:a] if random.random() < 0.2 else content[:a] + middle + content[b:]


def _with_other_value(random: Random, content: bytes) -> bytes:
    """The document with one value, at any depth, replaced, removed or repeated."""
    as_json = content.startswith(b"{")
    whole = (msgspec.json if as_json else msgspec.msgpack).decode(content)
    node: Any = whole
    while True:
        key = random.choice(list(node) if isinstance(node, dict) else range(len(node)))
        if not isinstance(node[key], dict | list) or not node[key] or random.random() < 0.2:
            break
        node = node[key]
    change = random.random()
    if change < 0.15:
        del node[key]
    else:
        node[key] = [node[key], node[key]] if change < 0.3 else random.choice(_VALUES)
    try:
        if not as_json:
            return msgspec.msgpack.encode(whole)
    except (OverflowError, UnicodeEncodeError):  # values that only JSON has
        pass
    return json.dumps(whole).encode("utf-8", "surrogatepass")

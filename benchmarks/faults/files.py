"""Hostile files: graphs and schedules with a part changed, cut off or replaced; paths that are no files."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from click.testing import CliRunner

from checkmate import CheckmateError, generators, read_graph, read_schedule, solve
from checkmate.cli.app import app
from checkmate.files.serialize import graph_bytes, schedule_bytes
from faults.fault import Fault, FaultClass, in_time

__all__ = ["CLASSES", "mutated"]

_NUMBERS = (-1, 0, 0.5, -0.0, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63), 10**400, 1e308, math.inf, math.nan)
_TEXTS = ("", "\0", "\x1b[31m", "\ud800", "\u202e", "a\nb", "9" * 5000, "%s{0}", "../../x", "\U0010ffff")
_VALUES = (*_NUMBERS, *_TEXTS, None, True, [], {}, [[]], {"": 0}, [-1], [2**70])
_DEEP = (b"[" * 100_000, b'{"a":' * 100_000, b"\x91" * 100_000, b"[" * 900 + b"]" * 900)
_GRAPH, _SCHEDULE = generators.unet(2), solve(generators.unet(2), "80%", solver="heuristics").schedule


def _read_graphs(random: Random, count: int, _folder: Path) -> Iterator[Fault]:
    return _readings(random, count, lambda form: graph_bytes(_GRAPH, format=form), read_graph)


def _read_schedules(random: Random, count: int, _folder: Path) -> Iterator[Fault]:
    assert _SCHEDULE is not None
    schedule = _SCHEDULE

    def sound(form: Any) -> bytes:
        return schedule_bytes(schedule, _GRAPH, {"budget": 1}, format=form)

    return _readings(random, count, sound, lambda content: read_schedule(content, _GRAPH))


def _readings(
    random: Random, count: int, sound: Callable[[Any], bytes], read: Callable[[bytes], object]
) -> Iterator[Fault]:
    for k in range(count):
        form = random.choice(("json", "msgpack"))
        content = mutated(random, sound(form))

        def happen(content: bytes = content) -> str | None:
            try:
                with in_time():
                    read(content)
            except CheckmateError as error:
                return None if str(error).isprintable() else f"an error that can't be printed: {error!r}"
            return None

        yield Fault(f"{form} file {k}: {content[:200]!r} …", happen)


def _commands(random: Random, count: int, folder: Path) -> Iterator[Fault]:
    """Commands that get such files, or paths that are no regular files."""
    assert _SCHEDULE is not None
    places = list(_not_files(folder))
    for k in range(count):
        graph, schedule = folder / f"graph{k}.json", folder / f"schedule{k}.json"
        whole = graph_bytes(_GRAPH)
        graph.write_bytes(mutated(random, whole) if random.random() < 0.5 else whole)
        schedule.write_bytes(mutated(random, schedule_bytes(_SCHEDULE, _GRAPH)))
        files = [random.choice(places) if random.random() < 0.2 else file for file in (graph, schedule)]
        command = random.choice(
            (
                ["simulate", *files],
                ["show", *files],
                ["show", *files, "-o", folder / f"{k}.html"],
                ["solve", files[0], "--budget", "80%", "--solver", "heuristics", "--time-limit", "1"],
                ["sweep", files[0], "--budgets", "80%,1", "--solver", "keep-all", "--json"],
            )
        )
        yield Fault(" ".join(map(str, command)), lambda command=command: _of_command(command))


def _of_command(command: list[object]) -> str | None:
    with in_time():
        result = CliRunner().invoke(app, [str(word) for word in command], prog_name="checkmate")
    if result.exit_code not in (0, 1, 2) or not isinstance(result.exception, SystemExit | None):
        return f"exit {result.exit_code}, {result.exception!r}"
    if "Traceback" in result.output or (result.exit_code == 2 and not result.stderr.strip()):
        return result.output
    return None


def _not_files(folder: Path) -> Iterator[Path]:
    """A folder, an empty file, a missing file, a pipe without a writer, endless zeros, a symbolic loop."""
    yield folder
    (folder / "empty").write_bytes(b"")
    yield folder / "empty"
    yield folder / "missing"
    os.mkfifo(folder / "pipe")
    yield folder / "pipe"
    (folder / "loop").symlink_to(folder / "loop")
    yield folder / "loop"
    yield Path("/dev/zero")
    yield Path("/proc/self/mem")


def mutated(random: Random, content: bytes) -> bytes:
    """The bytes, changed at random."""
    a, b = sorted(random.randrange(len(content) + 1) for _ in range(2))
    b = min(b, a + random.choice((1, 2, 8, 10_000)))
    return random.choice(
        (
            lambda: content[:a],
            lambda: content[:a] + content[b:],
            lambda: content[:b] + content[a:],
            lambda: content[:a] + random.randbytes(b - a) + content[b:],
            lambda: content[:a] + random.choice(_DEEP) + content[b:],
            lambda: _with_other_value(random, content),
            lambda: _with_other_value(random, content),
            lambda: _with_other_value(random, content),
        )
    )()


def _with_other_value(random: Random, content: bytes) -> bytes:
    """The document with one value, at any depth, replaced, removed or repeated."""
    as_json = content.startswith(b"{")
    whole = (msgspec.json if as_json else msgspec.msgpack).decode(content)
    node: Any = whole
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = random.choice(keys)
        if not isinstance(node[key], dict | list) or not node[key] or random.random() < 0.2:
            break
        node = node[key]
    if random.random() < 0.15:
        del node[key]
    elif random.random() < 0.15:
        node[key] = [node[key], node[key]]
    else:
        node[key] = random.choice(_VALUES)
    if as_json:
        return json.dumps(whole).encode("utf-8", "surrogatepass")
    try:
        return msgspec.msgpack.encode(whole)
    except (OverflowError, UnicodeEncodeError):  # values that only JSON has
        return json.dumps(whole).encode("utf-8", "surrogatepass")


CLASSES = (
    FaultClass(
        name="graph files, mutated",
        must="it is read, or refused with a CheckmateError",
        count=1000,
        make=_read_graphs,
    ),
    FaultClass(
        name="schedule files, mutated",
        must="it is read, or refused with a CheckmateError",
        count=800,
        make=_read_schedules,
    ),
    FaultClass(
        name="commands on such files, pipes, devices and folders",
        must="exit code 0, 1 or 2; no traceback; no hang",
        count=400,
        make=_commands,
    ),
)

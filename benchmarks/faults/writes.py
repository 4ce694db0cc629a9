"""Failing writes: every writer, at each of its system calls, with each error that the call may give."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from click.testing import CliRunner

from checkmate import Solution, generators, solve, write_graph, write_schedule
from checkmate.cli.app import app
from faults.fault import Fault, FaultClass, in_time

__all__ = ["CLASSES"]

_ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS, errno.EACCES)
_CALLS = ("open", "write", "fsync", "chmod", "replace")
_OLD = b"what was there before"
_SOLVE = ("GRAPH", "--budget", "80%", "--solver", "heuristics")
_SWEEP = ("GRAPH", "--budgets", "80%,90%", "--solver", "heuristics")

Write = Callable[[Path], None]


def _command(*words: str) -> Write:
    """A command that writes a file; if it can't, the exit code is 2, and one line gives the reason."""

    def write(file: Path) -> None:
        graph = file.parent.parent / "graph.json"
        if not graph.exists():
            write_graph(graph, _solution().problem.graph)
        places = {"GRAPH": str(graph), "FILE": str(file)}
        result = CliRunner().invoke(app, [places.get(word, word) for word in words], prog_name="checkmate")
        if result.exit_code == 2 and isinstance(result.exception, SystemExit):
            raise OSError(result.stderr)
        if result.exit_code:
            raise RuntimeError(f"exit {result.exit_code}: {result.output}")

    return write


@cache
def _solution() -> Solution:
    return solve(generators.unet(2), "80%", solver="heuristics")


def _schedule(file: Path) -> None:
    solution = _solution()
    assert solution.schedule is not None
    write_schedule(file, solution.schedule, solution.problem.graph)


_WRITERS: dict[str, tuple[str, Write]] = {
    "write_graph": ("x.json", lambda file: write_graph(file, _solution().problem.graph)),
    "write_graph, msgpack": ("x.msgpack", lambda file: write_graph(file, _solution().problem.graph)),
    "write_schedule": ("x.json", _schedule),
    "solve -o": ("x.json", _command("solve", *_SOLVE, "-o", "FILE")),
    "sweep -o": ("x.json", _command("sweep", *_SWEEP, "-o", "FILE")),
    "sweep --plot": ("x.html", _command("sweep", *_SWEEP, "--plot", "FILE")),
    **{f"show -o {suffix}": (f"x.{suffix}", _command("show", "GRAPH", "-o", "FILE"))
       for suffix in ("html", "dot", "perfetto.json", "svg", "png")},
}  # fmt: skip


@contextmanager
def _failing(folder: Path, at: int | None, error: int) -> Iterator[list[str]]:
    """Make system call number ``at`` on a file in this folder fail; returns the names of all such calls.

    A failing write has written half of its bytes.
    """
    before = {name: getattr(os, name) for name in _CALLS}
    made: list[str] = []
    ours: set[int] = set()

    def instead(name: str) -> Callable[..., Any]:
        def call(subject: Any, *rest: Any, **options: Any) -> Any:
            here = subject in ours if isinstance(subject, int) else str(subject).startswith(str(folder))
            if not here:
                return before[name](subject, *rest, **options)
            made.append(name)
            if len(made) - 1 == at:
                if name == "write":
                    before[name](subject, rest[0][: len(rest[0]) // 2])
                raise OSError(error, os.strerror(error))
            done = before[name](subject, *rest, **options)
            if name == "open":
                ours.add(done)
            return done

        return call

    for name in _CALLS:
        setattr(os, name, instead(name))
    try:
        yield made
    finally:
        for name, real in before.items():
            setattr(os, name, real)


@contextmanager
def _room_for(size: int) -> Iterator[None]:
    """Limit the size of files that this process writes, in bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _writes(random: Random, count: int, folder: Path) -> Iterator[Fault]:
    made: list[tuple[str, int, str, int]] = []
    sizes: dict[str, int] = {}
    for name, (suffix, write) in _WRITERS.items():
        place = folder / "dry"
        place.mkdir(exist_ok=True)
        (place / suffix).write_bytes(_OLD)
        with _failing(place, None, 0) as calls:
            write(place / suffix)
        sizes[name] = (place / suffix).stat().st_size
        made += [(name, at, call, error) for at, call in enumerate(calls) for error in _ERRORS]
        made += [(name, at, "room", 0) for at in range(len(_ERRORS))]
    for k in range(count):
        name, at, call, error = random.choice(made)
        old = random.choice((None, _OLD))
        if call == "room":
            size = random.randrange(sizes[name])
            about, fault = f"room for {size} bytes", lambda _place, size=size: _room_for(size)
        else:
            about = f"call {at}, {call}: {errno.errorcode[error]}"
            fault = lambda place, at=at, error=error: _failing(place, at, error)  # noqa: E731
        place = folder / str(k)
        yield Fault(
            f"{name}, {'new' if old is None else 'old'} file, {about}",
            lambda place=place, name=name, old=old, fault=fault: _happen(place, name, old, fault),
        )


def _happen(place: Path, name: str, old: bytes | None, fault: Callable[[Path], Any]) -> str | None:
    suffix, write = _WRITERS[name]
    place.mkdir()
    file = place / suffix
    if old is not None:
        file.write_bytes(old)
    try:
        with in_time(), fault(place):
            write(file)
    except OSError as error:
        if suffix not in str(error):
            return f"the error does not name the file: {error}"
        expected = {} if old is None else {suffix: old}
    else:  # no fault for this writer: a folder that can't be flushed, a file without an old mode
        expected = {suffix: file.read_bytes()}
        if expected[suffix] in (b"", old):
            return "no error, and no new file"
    found = {path.name: path.read_bytes() for path in place.iterdir()}
    return None if found == expected else f"left behind: { ({n: len(c) for n, c in found.items()}) }"


CLASSES = (
    FaultClass(
        name="failing writes, at every system call of every writer",
        must="the old file is intact, no other file remains beside it, the message names it",
        count=500,
        make=_writes,
    ),
)

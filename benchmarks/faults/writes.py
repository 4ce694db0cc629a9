"""Failing writes: every writer, at each of its system calls, with each error that the call may give."""

from __future__ import annotations

import errno
import os
import resource
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from click.testing import CliRunner

from checkmate import write_graph, write_schedule
from checkmate.cli.app import app
from faults.fault import Fault, in_time
from faults.files import sound

__all__ = ["failing_write"]

_ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS, errno.EACCES)
_CALLS = ("open", "write", "fsync", "chmod", "replace")
_OLD = b"what was there before"

Write = Callable[[Path], None]


def _graph(file: Path) -> None:
    write_graph(file, sound()[0])


def _schedule(file: Path) -> None:
    graph, schedule = sound()
    write_schedule(file, schedule, graph)


def _command(words: str) -> Write:
    """A command that writes a file; if it can't, the exit code is 2, and one line gives the reason."""

    def write(file: Path) -> None:
        graph = file.parent.parent / "graph.json"
        asked = words.replace("GRAPH", str(graph)).replace("FILE", str(file)).split()
        result = CliRunner().invoke(app, asked, prog_name="checkmate")
        if result.exit_code == 2 and isinstance(result.exception, SystemExit):
            raise OSError(result.stderr)
        if result.exit_code:
            raise RuntimeError(f"exit {result.exit_code}: {result.output}")

    return write


_WRITERS: dict[str, tuple[str, Write]] = {
    "write_graph": ("x.json", _graph),
    "write_graph, msgpack": ("x.msgpack", _graph),
    "write_schedule": ("x.json", _schedule),
    "solve -o": ("x.json", _command("solve GRAPH --budget 80% --solver heuristics -o FILE")),
    "sweep -o": ("x.json", _command("sweep GRAPH --budgets 80%,90% --solver heuristics -o FILE")),
    "sweep --plot": ("x.svg", _command("sweep GRAPH --budgets 80%,90% --solver heuristics --plot FILE")),
    **{f"show -o {suffix}": (f"x.{suffix}", _command("show GRAPH -o FILE"))
       for suffix in ("html", "dot", "perfetto.json", "svg", "png")},
}  # fmt: skip


@contextmanager
def _failing(folder: Path, at: int | None, error: int) -> Iterator[list[str]]:
    """Make system call number ``at`` on a file in this folder fail; returns the names of all such calls.

    A failing write has written half of its bytes.
    """
    made: list[str] = []

    def instead(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(subject: Any, *rest: Any, **options: Any) -> Any:
            path = os.readlink(f"/proc/self/fd/{subject}") if isinstance(subject, int) else str(subject)
            if path.startswith(str(folder)):
                made.append(name)
                if len(made) - 1 == at:
                    if name == "write":
                        real(subject, rest[0][: len(rest[0]) // 2])
                    raise OSError(error, os.strerror(error))
            return real(subject, *rest, **options)

        return call

    with patch.multiple(os, **{name: instead(name, getattr(os, name)) for name in _CALLS}):
        yield made


@contextmanager
def _room_for(size: int) -> Iterator[None]:
    """Limit the size of files that this process writes, in bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@cache
def _calls(name: str) -> tuple[list[str], int]:
    """The system calls of a writer that replaces a file, and the bytes that it writes."""
    suffix, write = _WRITERS[name]
    with tempfile.TemporaryDirectory() as folder:
        _graph(Path(folder, "graph.json"))
        (place := Path(folder, "dry")).mkdir()
        (file := place / suffix).write_bytes(_OLD)
        with _failing(place, None, 0) as calls:
            write(file)
        return calls, file.stat().st_size


def failing_write(random: Random, place: Path) -> Fault:
    """A writer, one of whose system calls fails, or for whose file there is too little room."""
    name, old = random.choice(list(_WRITERS)), random.choice((None, _OLD))
    calls, size = _calls(name)
    at = random.randrange(len(calls) + 1)
    fault: AbstractContextManager[object]
    if at == len(calls):
        room = random.randrange(size)
        about, fault = f"room for {room} bytes", _room_for(room)
    else:
        error = random.choice(_ERRORS)
        about, fault = f"call {at}, {calls[at]}: {errno.errorcode[error]}", _failing(place, at, error)
    _graph(place.parent / "graph.json")
    about = f"{name}, {'new' if old is None else 'old'} file, {about}"
    return Fault(about, lambda: _happen(place, name, old, fault))


def _happen(place: Path, name: str, old: bytes | None, fault: AbstractContextManager[object]) -> str | None:
    suffix, write = _WRITERS[name]
    file = place / suffix
    if old is not None:
        file.write_bytes(old)
    try:
        with in_time(), fault:
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

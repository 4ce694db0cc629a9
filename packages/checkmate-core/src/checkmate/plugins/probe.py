"""Attempts to load solvers and libraries, in processes of their own, since foreign code may end a process.

Metadata shows only that a library is installed. Whether its import raises, ends the process or never returns
is seen only by loading it. That happens in another process, outside of the current folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from tempfile import TemporaryDirectory

from checkmate.errors import MissingDistributionError
from checkmate.plugins import SOLVERS
from checkmate.plugins.loader import one_line

__all__ = ["Attempt", "attempts"]

_TIME_LIMIT_S = 120.0
_ABSENT = (ModuleNotFoundError, MissingDistributionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The result of loading one thing.

    Attributes:
        thing: ``"solver NAME"`` or ``"import MODULE"``.
        error: why it failed, on one line; empty if it loads.
        absent: True = it fails only because a library that it needs is not installed.
    """

    thing: str
    error: str = ""
    absent: bool = False


def attempts(things: Sequence[str], *, time_limit: float = _TIME_LIMIT_S) -> Iterator[Attempt]:
    """Load things one after the other in another process; if that process ends early, in a further one.

    Args:
        things: each ``"solver NAME"`` or ``"import MODULE"``.
        time_limit: seconds for one process.

    Yields:
        one attempt for each thing, in their order.
    """
    left = list(things)
    while left:
        lines, ended = _tried(left, time_limit)
        yield from (
            Attempt(thing=thing, **json.loads(line)) for thing, line in zip(left, lines, strict=False)
        )
        if len(lines) < len(left):
            yield Attempt(thing=left[len(lines)], error=ended)
        left = left[len(lines) + 1 :]


def _tried(things: Sequence[str], time_limit: float) -> tuple[list[bytes], str]:
    """One line for each thing that was loaded or failed; and how the process ended, if it ended early."""
    paths = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, paths))}
    command = [sys.executable, "-P", "-m", __name__, *things]
    with TemporaryDirectory(prefix="checkmate-") as folder:  # empty, so that no library finds settings in it
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=time_limit,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            return (error.stdout or b"").splitlines(), f"it did not load within {time_limit:g} s"
    return done.stdout.splitlines(), f"it ended the process with exit code {done.returncode}"


def _main(things: Sequence[str]) -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # so that output of foreign code goes to standard error
    for thing in things:
        answers.write(json.dumps(_outcome(thing)) + "\n")
        answers.flush()
    os._exit(0)  # without waiting for threads or handlers of foreign code


def _outcome(thing: str) -> dict[str, object]:
    kind, _, name = thing.partition(" ")
    try:
        SOLVERS.load(name) if kind == "solver" else import_module(name)
    except BaseException as error:  # noqa: BLE001 - foreign code
        cause = error.__cause__ if kind == "solver" else error
        return {"error": one_line(error), "absent": isinstance(cause, _ABSENT)}
    return {}


if __name__ == "__main__":
    _main(sys.argv[1:])

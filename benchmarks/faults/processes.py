"""Processes of the command line, found by a mark in their environment, and those that remain."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

__all__ = ["Ended", "command"]

_PATIENCE_S = 90.0
_MARK = "MARK_OF_A_FAULT"
_MAIN = "import os; from checkmate.cli import main; os.write(2, b'.'); main()"


class Ended(NamedTuple):
    """The end of a command.

    Attributes:
        code: exit code as in a shell: 128 + the signal, if a signal ended it.
        stdout: its standard output.
        stderr: its standard error.
        left: ids of processes that remained long afterwards.
    """

    code: int
    stdout: str
    stderr: str
    left: list[int]


def command(
    *words: object,
    environment: Mapping[str, str] | None = None,
    then: Callable[[subprocess.Popen[bytes]], None] | None = None,
) -> Ended:
    """Run ``checkmate`` with these arguments to its end.

    Args:
        words: its arguments.
        environment: variables to add.
        then: called as soon as ``main`` is about to begin. Python drops some interrupts while it imports
            the package before that, and no code of ours can repeat them.
    """
    mark = str(uuid.uuid4())
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _MAIN, *map(str, words)],
        env={**os.environ, **(environment or {}), _MARK: mark},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored where tests run behind &
    )
    try:
        assert process.stderr is not None
        os.read(process.stderr.fileno(), 1)
        if then is not None:
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
    return Ended(code, stdout.decode(), stderr.decode(), left)


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

"""The command line, ``checkmate``: needs the extra ``checkmate-core[cli]`` (click and rich)."""

from __future__ import annotations

import io
import os
import sys

__all__ = ["main"]

_BROKEN_PIPE = 141  # 128 + SIGPIPE
_INTERRUPTED = 130  # 128 + SIGINT


def main() -> None:
    """Run the command line; exit 0 ok, 1 infeasible or none found, 2 bad input, 130 interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shows "?"
    try:
        _app()
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # the flush at exit must not fail again
        raise SystemExit(_BROKEN_PIPE) from None
    except KeyboardInterrupt:  # while modules load; from then on click's
        sys.stderr.write("Interrupted.\n")
        raise SystemExit(_INTERRUPTED) from None


def _app() -> None:
    try:
        from checkmate.cli.app import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("click", "rich"):
            raise
        sys.stderr.write("Error: the command line needs click and rich: pip install 'checkmate-core[cli]'\n")
        raise SystemExit(2) from None
    app(prog_name="checkmate")

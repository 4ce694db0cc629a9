"""The command line, ``checkmate``: needs the extra ``checkmate-core[cli]`` (click and rich)."""

from __future__ import annotations

import io
import os
import sys
from importlib import import_module

from checkmate.cli.signals import exit_code, listening
from checkmate.errors import install_hint
from checkmate.plugins.loader import ANYTHING, one_line

__all__ = ["main"]

_BROKEN_PIPE = 141  # 128 + SIGPIPE
_INTERRUPTED = 130  # 128 + SIGINT


def main() -> None:
    """Run the command line; exit 0 ok, 1 infeasible or none found, 2 bad input, 130 or 143 interrupted."""
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
        raise SystemExit(exit_code(_INTERRUPTED)) from None


def _app() -> None:
    try:
        for needed in ("click", "rich.console"):
            import_module(needed)
    except ANYTHING as error:  # not there, or broken
        hint = install_hint("checkmate-core[cli]")
        sys.stderr.write(f"Error: the command line needs click and rich ({one_line(error)}): {hint}\n")
        raise SystemExit(2) from None
    from checkmate.cli.app import app

    with listening():
        try:
            app(prog_name="checkmate")
        except SystemExit as end:
            raise SystemExit(exit_code(end.code)) from None

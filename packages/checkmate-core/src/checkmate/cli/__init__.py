"""The command line, ``checkmate``: all but ``--version`` and ``doctor`` need ``checkmate-core[cli]``.

That extra is click and rich.
"""

from __future__ import annotations

import io
import os
import sys
from importlib import import_module, metadata

from checkmate.cli.signals import exit_code, listening
from checkmate.errors import install_hint
from checkmate.plugins.loader import ANYTHING, one_line
from checkmate.text.printable import excerpt

__all__ = ["main"]

_BROKEN_PIPE = 141  # 128 + SIGPIPE
_INTERRUPTED = 130  # 128 + SIGINT


def main() -> None:
    """Run the command line; exit 0 ok, 1 infeasible or none found, 2 bad input, 130 or 143 interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shows "?"
    try:
        with listening():  # before modules load, as imports have callbacks in which Python drops an interrupt
            _app()
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # the flush at exit must not fail again
        raise SystemExit(_BROKEN_PIPE) from None
    except KeyboardInterrupt:  # only while modules load; afterwards click handles it
        sys.stderr.write("Interrupted.\n")
        raise SystemExit(exit_code(_INTERRUPTED)) from None


def _app() -> None:
    try:
        for needed in ("click", "rich.console"):
            import_module(needed)
    except ANYTHING as error:  # click or rich is missing, or broken
        hint = install_hint("checkmate-core[cli]")
        why = f"the command line needs click and rich ({one_line(error)}): {hint}"
        if sys.argv[1:] not in (["--version"], ["doctor"]):
            sys.stderr.write(f"Error: {why}\n")
            raise SystemExit(2) from None
        level = "note" if isinstance(error, ModuleNotFoundError) else "problem"
        raise SystemExit(_plain(sys.argv[1], f"{level:8} {why}")) from None
    from checkmate.cli.app import app

    try:
        app(prog_name="checkmate")
    except SystemExit as end:
        raise SystemExit(exit_code(end.code)) from None


def _plain(command: str, finding: str) -> int:
    """Print the version, or ``finding`` and the doctor's findings; return the exit code."""
    if command == "--version":
        sys.stdout.write(f"checkmate, version {metadata.version('checkmate-core')}\n")
        return 0
    from checkmate.cli.findings import findings

    lines = [finding]
    for each in findings():
        advice = f"; {each.advice}" if each.advice else ""
        lines.append(f"{each.level:8} {each.subject}: {each.text}{advice}")
    sys.stdout.writelines(f"{excerpt(line)}\n" for line in lines)
    return int(any(line.startswith("problem") for line in lines))

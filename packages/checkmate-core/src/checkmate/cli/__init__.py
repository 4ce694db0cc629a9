"""The command line, ``checkmate``: needs the extra ``checkmate-core[cli]`` (click and rich)."""

from __future__ import annotations

import io
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; exit 0 ok, 1 infeasible or none found, 2 bad input."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shows "?"
    try:
        from checkmate.cli.app import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("click", "rich"):
            raise
        sys.stderr.write("Error: the command line needs click and rich: pip install 'checkmate-core[cli]'\n")
        raise SystemExit(2) from None
    app(prog_name="checkmate")

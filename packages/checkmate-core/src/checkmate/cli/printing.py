"""What commands print: the answer on stdout, as JSON for programs or as tables and lines for people."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from checkmate.text import printable

__all__ = [
    "Line",
    "blocks_are_safe",
    "foreign_code",
    "print_json",
    "print_lines",
    "print_table",
    "terminal",
    "terminal_width",
]

Line = Sequence[tuple[str, str]]
"""One line of text: pieces, each with a style of rich's (``""`` for none)."""


class _Terminal(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to the caller: rich would exit with 1, which means something else here."""
        raise BrokenPipeError


def terminal(*, stderr: bool = False) -> Console:
    """Where text for people goes; plain text if it is no terminal. Brackets in names are no markup."""
    return _Terminal(stderr=stderr, markup=False, highlight=False, emoji=False)


def terminal_width() -> int:
    """Columns of stdout; 80 if it is no terminal and COLUMNS does not say otherwise."""
    return terminal().width


def blocks_are_safe() -> bool:
    """Whether stdout can show block characters."""
    try:
        "▁█┤┄▼".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


@contextmanager
def foreign_code() -> Iterator[None]:
    """While code of plugins runs, what it prints goes to stderr: stdout is for the answer alone.

    Where stdout is a real file, what worker processes print, too.
    """
    with ExitStack() as undo:
        try:
            number = sys.stdout.fileno()
            sys.stdout.flush()
            kept = os.dup(number)
            undo.callback(os.close, kept)
            os.dup2(sys.stderr.fileno(), number)
            undo.callback(os.dup2, kept, number)
            undo.callback(sys.stdout.flush)
        except (AttributeError, OSError, ValueError):  # there is none, it is closed, or no real file
            pass
        undo.enter_context(redirect_stdout(sys.stderr))
        yield


def print_json(facts: Mapping[str, object]) -> None:
    """One JSON object, indented; infinite numbers become null."""
    click.echo(json_bytes(facts), nl=False)


def json_bytes(facts: Mapping[str, object]) -> bytes:
    """As :func:`print_json`, with a line break at the end."""
    return msgspec.json.format(msgspec.json.encode(facts), indent=2) + b"\n"


def print_lines(lines: Iterable[Line]) -> None:
    """Lines of styled pieces, never wrapped."""
    console = terminal()
    for line in lines:
        console.print(Text.assemble(*line), soft_wrap=True)


def print_table(title: str, rows: Iterable[Sequence[str]], *, header: Sequence[str] = ()) -> None:
    """Rows of cells under a title; nothing at all if there are no rows."""
    table = Table(*header, title=printable(title), title_justify="left", show_header=bool(header))
    for row in rows:
        table.add_row(*map(_cell, row))
    if table.row_count:
        terminal().print(table)


def _cell(text: str) -> str:
    return "\n".join(map(printable, text.splitlines()))

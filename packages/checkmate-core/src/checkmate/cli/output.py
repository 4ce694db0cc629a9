"""The output of commands: JSON for programs, tables and lines for people, and files that exporters write."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, chdir, contextmanager, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from checkmate.errors import CheckmateError, PluginError
from checkmate.files.disk import replace_file
from checkmate.plugins.loader import ANYTHING, one_line
from checkmate.text.printable import clipped, excerpt, printable

__all__ = [
    "Line",
    "Lines",
    "blocks_are_safe",
    "exported",
    "foreign_code",
    "print_json",
    "print_lines",
    "print_table",
    "say",
    "terminal",
]

Line = Sequence[tuple[str, str]]
"""One line of text: pieces, each with a style of rich's (``""`` for none)."""


Lines = tuple[str, ...]
"""A cell of several lines."""

_OTHER = re.compile(r"[^\n -~]")


class _Terminal(Console):
    def on_broken_pipe(self) -> None:
        """Raise: rich would exit with 1, which has another meaning here."""
        raise BrokenPipeError


def terminal(*, stderr: bool = False) -> Console:
    """A console for text for people, without markup; plain text if stdout is not a terminal."""
    return _Terminal(stderr=stderr, markup=False, highlight=False, emoji=False)


def blocks_are_safe() -> bool:
    """Whether stdout can show block characters."""
    try:
        "▁█┤┄▼".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


@contextmanager
def foreign_code() -> Iterator[None]:
    """Send output of foreign code inside the block to stderr: stdout is for the answer only.

    If stdout is a real file, this includes output of worker processes.
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
        except (AttributeError, OSError, ValueError):  # missing, closed, or not a real file
            pass
        undo.enter_context(redirect_stdout(sys.stderr))
        yield


def print_json(facts: Mapping[str, object]) -> None:
    """One JSON object, indented; infinite numbers become null."""
    click.echo(json_bytes(facts), nl=False)


def json_bytes(facts: Mapping[str, object]) -> bytes:
    """The text of :func:`print_json`, with a line break at the end, as bytes."""
    text = msgspec.json.format(msgspec.json.encode(facts), indent=2).decode()
    return _OTHER.sub(_seen, text).encode() + b"\n"


def _seen(found: re.Match[str]) -> str:
    """A character of a JSON text, escaped if it is invisible."""
    return found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1]


def say(text: str) -> None:
    """Print one line on stderr."""
    click.echo(excerpt(text), err=True)


def print_lines(lines: Iterable[Line]) -> None:
    """Print lines of styled pieces, never wrapped."""
    console = terminal()
    for line in lines:
        console.print(Text.assemble(*((printable(text), style) for text, style in line)), soft_wrap=True)


def print_table(title: str, rows: Iterable[Sequence[str | Lines]], *, header: Sequence[str] = ()) -> None:
    """Print rows under a title, and nothing if there are no rows. A cell is one line, or several."""
    table = Table(*header, title=clipped(title), title_justify="left", show_header=bool(header))
    for row in rows:
        table.add_row(*map(_cell, row))
    if table.row_count:
        terminal().print(table)


def _cell(cell: str | Lines) -> str:
    return excerpt(cell) if isinstance(cell, str) else "\n".join(map(excerpt, cell))


@contextmanager
def exported(output: Path, by: str) -> Iterator[Path]:
    """Yield a path to write to; if the block succeeds, that file replaces ``output``.

    The path has the same name, in an empty folder, which is the current folder inside the block: an exporter
    may write partial files, and libraries such as matplotlib look for settings in the current folder.

    Raises:
        PluginError: if the block fails by a fault of its code, or writes no file; names it as ``by``.
        OSError: if the file can't be written.
    """
    with TemporaryDirectory(prefix="checkmate-") as folder:
        file = Path(folder, output.name)
        try:
            with chdir(folder):
                yield file
        except (CheckmateError, OSError):
            raise
        except ANYTHING as error:
            raise PluginError(f"{by} failed: {one_line(error)}") from error
        if not file.is_file():
            raise PluginError(f"{by} wrote no file")
        content = file.read_bytes()
    replace_file(output, content)

"""The options and arguments that several commands share, with their checks; the parser of budgets.

A budget is ``8GiB``, ``123456``, ``60%`` or ``0.6``; or a list of these, or a range of shares.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import click

from checkmate.errors import BudgetError
from checkmate.files.disk import MAX_SIZE, is_stream
from checkmate.text.printable import examples
from checkmate.units import Budget, parse_bytes

__all__ = [
    "FILE",
    "Input",
    "as_json",
    "budget_list",
    "budget_of",
    "distinct_files",
    "examples",
    "graph_file",
    "max_size",
    "new_file",
    "not_the_graph",
    "output",
    "solving",
]

Input = Path | BinaryIO
"""The input of a command: a file, or standard input."""


_STANDARD_INPUT = f"{__name__}.stdin"
_SHARE = re.compile(r"\s*(\d*\.\d+|\d+\.)\s*")
_PERCENT = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*%\s*")
_RANGE = re.compile(r":|[\w%]\s*(-|–|\.\.)\s*\.?\d")
"""In a range of budgets, as it must be written, and as people write it."""
_MANY = 10_000


class _Input(click.Path):
    """An existing file, or ``-``; folders and missing files are refused before any work."""

    def __init__(self) -> None:
        super().__init__(exists=True, dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path; or standard input as an open stream, which may be used once."""
        if value != "-":
            return super().convert(value, param, ctx)
        if sys.stdin is None:
            self.fail("standard input is closed.", param, ctx)
        if ctx is not None and ctx.meta.setdefault(_STANDARD_INPUT, param) is not param:
            self.fail("standard input can be read only once.", param, ctx)
        return sys.stdin.buffer


FILE = _Input()


def _number(_context: click.Context, _option: click.Parameter, value: float) -> float:
    if math.isnan(value):  # no range excludes it
        raise click.BadParameter("nan is not a number of seconds.")
    return value


def _size(_context: click.Context, option: click.Parameter, text: str) -> int:
    try:
        return parse_bytes(text)
    except BudgetError as error:
        raise click.BadParameter(
            f"{text!r:.60} is not a size: write bytes, or 1GiB.", param=option
        ) from error


def new_file(_context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a file that can't be written, before the work."""
    if path is None:
        return None
    if not path.parent.is_dir():
        raise click.BadParameter(f"{path}: there is no folder {str(path.parent)!r}.", param=option)
    if path.is_dir():  # an empty name counts as the current folder
        raise click.BadParameter(f"{str(path)!r} is a folder.", param=option)
    if path.exists() and not os.access(path, os.W_OK):
        raise click.BadParameter(f"{path} may not be written.", param=option)
    folder = Path(os.path.realpath(path)).parent
    if not is_stream(path) and not os.access(folder, os.W_OK):
        raise click.BadParameter(f"{path}: the folder {str(folder)!r} may not be written.", param=option)
    return path


def distinct_files(**outputs: Path | None) -> None:
    """Refuse two outputs to one file; the name of each argument is its option without the dashes."""
    for (_, first), (name, second) in itertools.combinations(outputs.items(), 2):
        if first is not None and second is not None and not is_stream(first) and _same(first, second):
            raise click.BadParameter(f"{second}: another output has the same path.", param_hint=f"'--{name}'")


def _same(first: Path, second: Path) -> bool:
    if first.exists() and second.exists():
        return first.samefile(second)
    return os.path.realpath(first) == os.path.realpath(second)


def not_the_graph(path: Path | None, *read: Input | None) -> None:
    """Refuse to overwrite an input."""
    for source in read:
        if path is not None and isinstance(source, Path) and path.exists() and path.samefile(source):
            what = "graph" if source is read[0] else "schedule"
            raise click.BadParameter(f"{path} is the {what} itself.", param_hint="'-o'")


graph_file = click.argument("graph", type=FILE)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
max_size = click.option(
    "--max-size",
    metavar="SIZE",
    default=f"{MAX_SIZE >> 20}MiB",
    show_default=True,
    callback=_size,
    help="Refuse larger files: reading takes several times the size in memory.",
)


def output(written: str) -> Callable[..., Any]:
    """The option ``-o``, ``--output``, with the help text ``written``."""
    path = click.Path(dir_okay=False, path_type=Path)
    return click.option("-o", "--output", type=path, callback=new_file, help=written)


def solving(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of solving commands: time_limit, fixed_order, seed, threads and cache."""
    for option in reversed(_SOLVING):
        command = option(command)
    return command


_SOLVING = (
    click.option(
        "--time-limit",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        default=10.0,
        show_default=True,
        callback=_number,
        help="For each solve.",
    ),
    click.option("--fixed-order", is_flag=True, help="Keep the order in which the ops first run."),
    click.option(
        "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="For every random choice."
    ),
    click.option(
        "--threads",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Threads or processes that one solve may use.",
    ),
    click.option(
        "--cache/--no-cache",
        default=False,
        show_default=True,
        help="Look up and keep answers on disk ('checkmate cache info' says where).",
    ),
)


def budget_of(text: str) -> Budget:
    """A budget as typed: a number with a point is a share; other text is left to the parser of sizes.

    >>> budget_of("0.6"), budget_of("60%"), budget_of("8GiB")
    (0.6, '60%', '8GiB')
    """
    return float(text) if _SHARE.fullmatch(text) else text


def budget_list(text: str) -> list[Budget]:
    """Budgets separated by commas; ``start:stop:count`` means ``count`` evenly spaced shares.

    >>> budget_list("0.5:100%:3, 4GiB")
    [0.5, 0.75, 1.0, '4GiB']

    Raises:
        BudgetError: if a range can't be read, or a budget is missing between two commas.
    """
    budgets: list[Budget] = []
    for part in text.split(","):
        if not part.strip():
            raise BudgetError(f"budgets {text!r:.60}: a budget is missing; write 0.3:1.0:15 or 4GiB,60%,0.5")
        budgets += _shares(part) if _RANGE.search(part) else [budget_of(part.strip())]
    return budgets


def _shares(text: str) -> list[Budget]:
    ends = text.split(":")
    start, stop = (_share(end) for end in (*ends, "")[:2])
    count = int(ends[2]) if len(ends) == 3 and re.fullmatch(r"\s*[0-9]{1,9}\s*", ends[2]) else 0
    if start is None or stop is None or not 1 <= count <= _MANY:
        raise BudgetError(
            f"budgets {text!r:.60}: a range is start:stop:count, of shares and a number up to {_MANY}: "
            "write 0.3:1.0:15"
        )
    step = (stop - start) / max(count - 1, 1)
    return [start + k * step if k < count - 1 or k == 0 else stop for k in range(count)]


def _share(text: str) -> float | None:
    percent = _PERCENT.fullmatch(text)
    if percent:
        return float(percent[1]) / 100
    return float(text) if _SHARE.fullmatch(text) or re.fullmatch(r"\s*\d\s*", text) else None

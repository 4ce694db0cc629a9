"""Progress on stderr: shown only on a terminal, and cleared at the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from checkmate.cli.exits import Interrupted
from checkmate.cli.output import terminal
from checkmate.framework.progress import showing
from checkmate.problem.problem import Progress
from checkmate.text.printable import cost_text, printable

__all__ = ["counting", "report_text", "steps", "watching"]


def report_text(report: Progress, unit: str) -> str:
    """A solver's report as one line.

    >>> report_text(Progress(incumbent=12.0, bound=9.0, seconds=0.5, step="min-cut"), "s")
    'min-cut: best 12 s, bound 9 s, gap 25.0%'
    """
    bound = cost_text(report.bound, unit) if math.isfinite(report.bound) else "none"
    if report.incumbent is None or not math.isfinite(report.incumbent):
        return f"{printable(report.step)}: no schedule yet, bound {bound}"
    best = cost_text(report.incumbent, unit)
    return f"{printable(report.step)}: best {best}, bound {bound}, gap {report.gap:.1%}"


@contextmanager
def watching(unit: str, console: Console | None = None) -> Iterator[Callable[[Progress], None]]:
    """Show a solver's reports while it works, costs in ``unit``; on Ctrl-C, raise with the last report.

    Raises:
        Interrupted: in place of KeyboardInterrupt.
    """
    last: list[Progress] = []
    with _bar(SpinnerColumn(), TextColumn("{task.description}"), console=console) as bar:
        task = bar.add_task("solving …", total=None)

        def tell(report: Progress) -> None:
            last[:] = [report]
            bar.update(task, description=report_text(report, unit))

        try:
            yield tell
        except KeyboardInterrupt as error:
            known = f" {report_text(last[0], unit)}." if last else ""
            raise Interrupted(f"Interrupted: no schedule was written.{known}") from error


@contextmanager
def steps(what: str, console: Console | None = None) -> Iterator[Callable[[Progress], None]]:
    """Show the step of each report while ``what`` is in progress."""
    with _bar(SpinnerColumn(), TextColumn(what), TextColumn("{task.description}"), console=console) as bar:
        task = bar.add_task("", total=None)
        yield lambda report: bar.update(task, description=printable(report.step))


@contextmanager
def counting(what: str, console: Console | None = None) -> Iterator[Callable[[int, int, str], None]]:
    """Show the number of finished solves; call the yielded function with (done, total, last answer)."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with _bar(*columns, console=console) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, latest: bar.update(
            task, completed=done, total=total, description=printable(latest)
        )


@contextmanager
def _bar(
    *columns: SpinnerColumn | TextColumn | BarColumn | MofNCompleteColumn, console: Console | None
) -> Iterator[Bar]:
    """The display; it replaces the line that planning would write."""
    where = console or terminal(stderr=True)
    disable = not where.is_terminal
    with (
        showing(False),
        Bar(*columns, TimeElapsedColumn(), console=where, transient=True, disable=disable) as bar,
    ):
        yield bar

"""The stage of planning, as one line on a terminal or in a notebook, erased when the step is planned.

    tracing ↦ timing op 12 of 40 ↦ solving: gap 1.2% ↦ nothing

The line is written to stderr, at most ten times a second, and only inside of :func:`showing`. It is erased
before a message is logged, so that it never runs into one. Elsewhere, as in a log file, one warning is logged
if planning takes long: quick plans stay silent, and warnings, unlike messages at level INFO, show by default.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from checkmate.problem.problem import Progress
from checkmate.text.printable import clipped

__all__ = ["channel", "show", "showing", "warn_if_slow"]

_VARIABLE = "CHECKMATE_PROGRESS"
_log = logging.getLogger(__name__)
_PERIOD_S = 0.1
_SLOW_S = 10.0
"""Seconds of planning after which a warning says so, once in a process."""
_COLUMNS = 100
"""The longest line, in characters; less on a narrow terminal."""


def channel(progress: bool | None) -> Callable[[Progress, str], None] | None:
    """The function that shows reports: :func:`show`, :func:`warn_if_slow`, or None, which shows nothing.

    Args:
        progress: True = on the line; None = on the line on a terminal and in a notebook, else by a warning,
            on one rank only. ``CHECKMATE_PROGRESS=0`` in the environment overrides it.
    """
    if progress is False or os.environ.get(_VARIABLE) == "0":
        return None
    if progress:
        return show
    if os.environ.get("RANK", "0") != "0":
        return None
    return show if _on_terminal() or _in_notebook() else warn_if_slow


@contextmanager
def showing(allowed: bool = True) -> Iterator[None]:
    """Allow the line until the end of this block; False = forbid it: another display has the terminal."""
    factory = logging.getLogRecordFactory()

    def after_erasing(*args: Any, **kwargs: Any) -> logging.LogRecord:
        _line.erase()
        return factory(*args, **kwargs)

    if not _line.blocks:
        _line.since_s = time.monotonic()
    _line.blocks.append(allowed)
    logging.setLogRecordFactory(after_erasing)
    try:
        yield
    finally:
        logging.setLogRecordFactory(factory)
        _line.erase()
        _line.blocks.pop()


def show(report: Progress, stage: str = "") -> None:
    """Replace the line, if it is allowed, by ``stage`` and a report; a report often names its stage."""
    _line.replace(_text(report, stage))


def warn_if_slow(report: Progress, stage: str = "") -> None:
    """Log one warning if planning has taken long; a report often names its stage."""
    _line.warn(_text(report, stage))


def _text(report: Progress, stage: str) -> str:
    """A report as one line.

    >>> _text(Progress(12.0, 9.0, 0.5, "min-cut"), "solving")
    'Checkmate: solving: gap 25.0% (min-cut)'
    >>> _text(Progress(None, 0.0, 0.5, "timing op 12 of 40: aten.mm"), "")
    'Checkmate: timing op 12 of 40: aten.mm'
    """
    detail = report.step
    if report.incumbent is not None and math.isfinite(report.incumbent):
        detail = f"gap {report.gap:.1%} ({report.step})"
    return ": ".join(dict.fromkeys(filter(None, ("Checkmate", stage, detail))))


class _Line:
    """The one line of this process, and whether each open block allows it."""

    def __init__(self) -> None:
        self.blocks: list[bool] = []
        self.since_s = 0.0
        self._warned = False
        self._shown = ""
        self._at_s = -math.inf

    def warn(self, text: str) -> None:
        """Log a warning, once, if the outermost block has been open for long."""
        taken_s = time.monotonic() - self.since_s
        if self._warned or not self.blocks or not all(self.blocks) or taken_s < _SLOW_S:
            return
        self._warned = True
        _log.warning(
            "%s: planning has taken %.0f s so far, which later steps don't repeat; CHECKMATE_LOG=info logs "
            "its stages",
            text,
            taken_s,
        )

    def replace(self, text: str) -> None:
        """Replace the line; while the stage is the same, at most once in a tenth of a second."""
        now = time.monotonic()
        same_stage = text.split(" ")[:2] == self._shown.split(" ")[:2]
        if not self.blocks or not all(self.blocks) or (same_stage and now < self._at_s + _PERIOD_S):
            return
        columns = min(shutil.get_terminal_size().columns - 1, _COLUMNS)
        text = clipped(text, max(columns, 20))
        self._write(f"\r{text.ljust(len(self._shown))}")
        self._shown, self._at_s = text, now

    def erase(self) -> None:
        if self._shown:
            self._write(f"\r{' ' * len(self._shown)}\r")
        self._shown, self._at_s = "", -math.inf

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (AttributeError, OSError, ValueError):  # it is closed: the line is not worth an error
            self._shown = ""


_line = _Line()


def _on_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # stderr is missing, or closed
        return False


def _in_notebook() -> bool:
    """Whether this runs in a notebook, which displays stderr although it is not a terminal."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")

"""The stage of planning, as one line on a terminal or in a notebook, erased when the step is planned.

    tracing ↦ timing op 12 of 40 ↦ solving: gap 1.2% ↦ nothing

The line is written to stderr, at most ten times a second, and only inside of :func:`planning`. It is erased
before a message of Checkmate is logged, so that it never runs into one. Each stage is also a message of level
INFO, for runs without a terminal (``CHECKMATE_LOG=info``).
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from checkmate.problem.problem import OnProgress, Progress
from checkmate.text.logs import LOGGERS, has_handlers
from checkmate.text.printable import clipped

__all__ = ["Listener", "hidden", "planning", "wanted"]

_VARIABLE = "CHECKMATE_PROGRESS"
_PERIOD_S = 0.1
_COLUMNS = 100
"""The longest line, in characters; less on a narrow terminal."""
_log = logging.getLogger(__name__)


def wanted(progress: bool | None) -> bool:
    """Whether the line is written: by the setting; for None, on a terminal or in a notebook, by one rank.

    Args:
        progress: the setting; ``CHECKMATE_PROGRESS=0`` in the environment overrides it.
    """
    if progress is False or os.environ.get(_VARIABLE) == "0":
        return False
    return bool(progress) or (os.environ.get("RANK", "0") == "0" and (_on_terminal() or _in_notebook()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Passes reports on to the user's function and to the line.

    Attributes:
        on_progress: the user's function; None = there is none.
        progress: the setting of the same name.
        stage: written before each report; empty = the report names the stage.
    """

    on_progress: OnProgress | None
    progress: bool | None
    stage: str = ""

    def __call__(self, report: Progress) -> None:
        """Pass a report on."""
        if self.on_progress is not None:
            self.on_progress(report)
        if wanted(self.progress):
            _line.show(_text(report, self.stage))


@contextmanager
def planning(listener: OnProgress | None, step: str) -> Iterator[None]:
    """Report that a stage begins, and allow the line until the end of this block.

    Args:
        listener: takes the report; None = the stage is only logged.
        step: the stage in words.
    """
    _log.info("%s", step)
    if listener is None:
        yield
        return
    with _line.allowed(True):
        listener(Progress(None, 0.0, 0.0, step))
        yield


def hidden() -> AbstractContextManager[None]:
    """Write no line inside of this block, in which another display has the terminal."""
    return _line.allowed(False)


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
    """The one line of this process; every method may be called by any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._blocks: list[bool] = []
        self._shown = ""
        self._at_s = -math.inf
        self._eraser = _Eraser()

    @contextmanager
    def allowed(self, allowed: bool) -> Iterator[None]:
        """A block in which the line may be written, or may not; the line is erased at its end."""
        with self._lock:
            self._blocks.append(allowed)
            if len(self._blocks) == 1:
                for name in LOGGERS:
                    logging.getLogger(name).handlers.insert(0, self._eraser)  # before those that write
        try:
            yield
        finally:
            with self._lock:
                self.erase()
                self._blocks.remove(allowed)
                if not self._blocks:
                    for name in LOGGERS:
                        logging.getLogger(name).removeHandler(self._eraser)

    def show(self, text: str) -> None:
        """Replace the line; a stage that goes on is written again only after a tenth of a second."""
        with self._lock:
            now = time.monotonic()
            same_stage = text.split(" ")[:2] == self._shown.split(" ")[:2]
            if not self._blocks or not all(self._blocks) or (same_stage and now < self._at_s + _PERIOD_S):
                return
            columns = min(shutil.get_terminal_size().columns - 1, _COLUMNS)
            text = clipped(text, max(columns, 20))
            self._write(f"\r{text.ljust(len(self._shown))}")
            self._shown, self._at_s = text, now

    def erase(self) -> None:
        with self._lock:
            if self._shown:
                self._write(f"\r{' ' * len(self._shown)}\r")
            self._shown, self._at_s = "", -math.inf

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (AttributeError, OSError, ValueError):  # it is closed: the line is not worth an error
            self._shown = ""


class _Eraser(logging.Handler):
    """Erases the line before a message is written by the handlers of the loggers above."""

    def emit(self, record: logging.LogRecord) -> None:
        """Erase; without this handler, Python itself would write a warning that no other handler takes."""
        _line.erase()
        last = logging.lastResort
        if last is not None and record.levelno >= last.level and not has_handlers(record.name, self):
            last.handle(record)


_line = _Line()


def _on_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


def _in_notebook() -> bool:
    """Whether this runs in a notebook, which displays stderr although it is not a terminal."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")

"""What ends a command early: Ctrl-C, SIGTERM (``kill``, a cluster's queue) and SIGHUP (the terminal is gone).

The first raises KeyboardInterrupt: a search ends with the best so far, what was found is written, and the
exit code is 128 + the signal's number. Another one ends the process at once, unless it comes within a second:
``timeout`` and some queues send each signal twice, to a process and to its group.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ExtensionFileLoader
from types import FrameType

__all__ = ["exit_code", "held_back", "interruptible", "listening"]

_ENDING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
_HAS_TIMER = hasattr(signal, "setitimer")
_SAME_S = 1.0
_SOON_S = 0.01


@dataclass(slots=True)
class _Heard:
    number: int = 0
    at: float = 0.0
    pending: bool = False
    held_back: bool = False


_heard = _Heard()  # signals belong to the process: so does this


@contextmanager
def listening() -> Iterator[None]:
    """Interrupt what runs inside at the first signal. What is ignored, as SIGHUP by ``nohup``, stays so."""
    before = {}
    if threading.current_thread() is threading.main_thread():  # no other may set handlers
        heeded = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, _hear) for number in heeded}
        if _HAS_TIMER:
            before[signal.SIGALRM] = signal.signal(signal.SIGALRM, _hear_again)
    hook, sys.unraisablehook = sys.unraisablehook, _come_again
    try:
        yield
    finally:
        sys.unraisablehook = hook
        if _heard.number and _HAS_TIMER:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def held_back() -> Iterator[None]:
    """Let what runs inside finish: a signal interrupts at the end."""
    before, _heard.held_back = _heard.held_back, True
    try:
        yield
    finally:
        _heard.held_back = before
    _interrupt()


@contextmanager
def interruptible() -> Iterator[None]:
    """Within :func:`held_back`, the part that a signal interrupts at once after all."""
    before, _heard.held_back = _heard.held_back, False
    try:
        _interrupt()
        yield
    finally:
        _heard.held_back = before


def _interrupt(frame: FrameType | None = None) -> None:
    """Act on a signal, unless it is held back; ``frame`` is where the program is."""
    if _heard.pending and not _heard.held_back:
        if _initialises_an_extension(frame):
            _come_soon()
            return
        _heard.pending = False
        raise KeyboardInterrupt


def _initialises_an_extension(frame: FrameType | None) -> bool:
    """Whether it is in a compiled module's import: that would end, but with an ImportError of its own."""
    while frame is not None:
        loads = frame.f_code.co_name in ("create_module", "exec_module")
        if _HAS_TIMER and loads and isinstance(frame.f_locals.get("self"), ExtensionFileLoader):
            return True
        frame = frame.f_back
    return False


def _come_soon() -> None:
    signal.setitimer(signal.ITIMER_REAL, _SOON_S)


def _come_again(dropped: sys.UnraisableHookArgs) -> None:
    """Python drops what is raised in a finaliser or a callback, as an import has one: interrupt once more."""
    if isinstance(dropped.exc_value, KeyboardInterrupt) and _heard.number and _HAS_TIMER:
        _heard.pending = True
        _come_soon()  # raised here, it would be dropped again
    else:
        sys.__unraisablehook__(dropped)


def exit_code(code: str | int | None) -> str | int | None:
    """The exit code of a command that ended with ``code``, in view of what was heard.

    Ctrl-C is the wish of a person: a command that has an answer then, and ends with 0, did what was asked.
    Other signals come from a program, and the exit code tells it that they were heeded.
    """
    if not _heard.number or (_heard.number == signal.SIGINT and not code):
        return code
    return 128 + _heard.number


def _hear(number: int, frame: FrameType | None) -> None:
    if not _heard.number:
        _heard.number, _heard.at, _heard.pending = number, time.monotonic(), True
        _interrupt(frame)
    elif time.monotonic() - _heard.at > _SAME_S:
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)


def _hear_again(_number: int, frame: FrameType | None) -> None:
    _interrupt(frame)

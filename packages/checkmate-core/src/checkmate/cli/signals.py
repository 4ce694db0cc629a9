"""Signals that end a command: Ctrl-C, SIGTERM (``kill``, a cluster's queue) and SIGHUP (a closed terminal).

The first signal raises KeyboardInterrupt: a search returns its best schedule, which is written, and the exit
code is 128 + the signal's number. A second signal ends the process at once, unless it comes within a second:
``timeout`` and some queues send each signal twice, to a process and to its group.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib.machinery import ExtensionFileLoader
from types import FrameType

__all__ = ["exit_code", "held_back", "interruptible", "listening"]

_ENDING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
_HAS_TIMER = hasattr(signal, "setitimer")
_SAME_S = 1.0
_SOON_S = 0.01


@dataclass(slots=True)
class _Received:
    number: int = 0
    at: float = 0.0
    pending: bool = False
    held_back: bool = False


_received = _Received()  # one for the process, as signals are


@contextmanager
def listening() -> Iterator[None]:
    """Interrupt the block at the first signal. Ignored signals, as SIGHUP under ``nohup``, stay ignored."""
    before = {}
    if threading.current_thread() is threading.main_thread():  # only this thread may set handlers
        handled = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, _receive) for number in handled}
        if _HAS_TIMER:
            before[signal.SIGALRM] = signal.signal(signal.SIGALRM, _interrupt)
    hook, sys.unraisablehook = sys.unraisablehook, _repeat_dropped
    try:
        yield
    finally:
        sys.unraisablehook = hook
        if _received.number and _HAS_TIMER:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def held_back(back: bool = True) -> Iterator[None]:
    """Delay the interrupt of a signal to the end of the block."""
    before, _received.held_back = _received.held_back, back
    try:
        _interrupt()
        yield
    finally:
        _received.held_back = before
    _interrupt()


def interruptible() -> AbstractContextManager[None]:
    """Inside :func:`held_back`, a block that a signal interrupts at once."""
    return held_back(False)


def exit_code(code: str | int | None) -> str | int | None:
    """The exit code of a command that ended with ``code``, after the signals received.

    Ctrl-C comes from a user: a command that still gives an answer, and ends with 0, has succeeded. Other
    signals come from a program, which learns from the exit code that the signal was obeyed.
    """
    if not _received.number or (_received.number == signal.SIGINT and not code):
        return code
    return 128 + _received.number


def _receive(number: int, frame: FrameType | None) -> None:
    if not _received.number:
        _received.number, _received.at, _received.pending = number, time.monotonic(), True
        _interrupt(number, frame)
    elif time.monotonic() - _received.at > _SAME_S:
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)


def _interrupt(_number: int = 0, frame: FrameType | None = None) -> None:
    """Raise for a pending signal, unless it is held back; ``frame`` is the interrupted one."""
    if not _received.pending or _received.held_back:
        return
    if _HAS_TIMER and _initialises_an_extension(frame):
        signal.setitimer(signal.ITIMER_REAL, _SOON_S)
        return
    _received.pending = False
    raise KeyboardInterrupt


def _initialises_an_extension(frame: FrameType | None) -> bool:
    """Whether a compiled module is being imported, which would turn the interrupt into an ImportError."""
    while frame is not None and not isinstance(frame.f_locals.get("self"), ExtensionFileLoader):
        frame = frame.f_back
    return frame is not None


def _repeat_dropped(dropped: sys.UnraisableHookArgs) -> None:
    """Repeat an interrupt that Python dropped in a finaliser or a callback; imports have such callbacks."""
    if isinstance(dropped.exc_value, KeyboardInterrupt) and _received.number and _HAS_TIMER:
        _received.pending = True
        signal.setitimer(signal.ITIMER_REAL, _SOON_S)  # raised here, it would be dropped again
    else:
        sys.__unraisablehook__(dropped)

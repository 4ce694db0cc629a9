"""A fault that is made on purpose, and how it is told whether it did harm."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import FrameType
from typing import NamedTuple

__all__ = ["Fault", "FaultClass", "harm", "in_time"]

_LATE_S = 60
"""Seconds after which a fault is taken to hang for ever: none needs more than a few."""


class Fault(NamedTuple):
    """One fault.

    Attributes:
        about: what is done, in a few words.
        happen: does it, and returns what went wrong; None if all is as it must be.
    """

    about: str
    happen: Callable[[], str | None]


@dataclass(frozen=True, kw_only=True)
class FaultClass:
    """Faults of one kind.

    Attributes:
        name: of the row in the table.
        must: what must be true after each.
        count: how many are tried.
        make: the faults, from a random source, their number, and an empty folder.
        apart: whether each works in processes of its own, so that several may happen at once.
    """

    name: str
    must: str
    count: int
    make: Callable[[Random, int, Path], Iterator[Fault]]
    apart: bool = False


def harm(fault: Fault) -> str | None:
    """Let it happen; what went wrong, a defect of the checks themselves included."""
    try:
        return fault.happen()
    except Exception:  # noqa: BLE001, it is the answer
        return traceback.format_exc(limit=-4)


@contextmanager
def in_time() -> Iterator[None]:
    """End what hangs inside; in the main thread only."""

    def late(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"not over after {_LATE_S} seconds, process {os.getpid()}")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(_LATE_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)

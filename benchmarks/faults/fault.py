"""A deliberate fault, and the check whether it did harm."""

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
"""Seconds after which a fault counts as hanging; none needs more than a few."""


class Fault(NamedTuple):
    """One fault.

    Attributes:
        about: the fault in a few words.
        happen: causes the fault, and returns the harm; None if there is none.
    """

    about: str
    happen: Callable[[], str | None]


@dataclass(frozen=True, kw_only=True)
class FaultClass:
    """Faults of one kind.

    Attributes:
        name: of the row in the table.
        must: the condition that must hold after each.
        count: the number of faults in a whole run.
        make: makes the faults from a random source, their number, and an empty folder.
        apart: whether each fault has processes of its own, so that several may run at once.
    """

    name: str
    must: str
    count: int
    make: Callable[[Random, int, Path], Iterator[Fault]]
    apart: bool = False


def harm(fault: Fault) -> str | None:
    """Cause the fault; returns the harm, also if the check itself fails."""
    try:
        return fault.happen()
    except Exception:  # noqa: BLE001, it is the answer
        return traceback.format_exc(limit=-4)


@contextmanager
def in_time(seconds: int = _LATE_S) -> Iterator[None]:
    """Raise TimeoutError in a block that takes longer; in the main thread only."""

    def late(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"not over after {seconds} seconds, process {os.getpid()}")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)

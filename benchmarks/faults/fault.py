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
from typing import Any, NamedTuple

__all__ = ["Fault", "FaultClass", "harm", "in_time"]

_LATE_S = 60
"""Seconds after which a fault counts as hanging; none needs more than a few."""


class Fault(NamedTuple):
    """What it is in a few words, and a function that causes it and returns the harm, or None."""

    about: str
    happen: Callable[[], str | None]


@dataclass(frozen=True)
class FaultClass:
    """Faults of one kind.

    Attributes:
        name: of the row in the table.
        must: the condition that must hold after each.
        count: the number of faults in a whole run.
        make: makes a fault from a random source and an empty folder.
        apart: whether each fault has processes of its own, so that several may run at once.
    """

    name: str
    must: str
    count: int
    make: Callable[[Random, Path], Fault]
    apart: bool = False

    def faults(self, count: int, folder: Path, seed: object = 0) -> Iterator[Fault]:
        """Some faults, each with a folder of its own in ``folder``."""
        for k in range(count):
            (place := folder / str(k)).mkdir()
            yield self.make(Random(f"{self.name} {seed} {k}"), place)


def harm(fault: Fault) -> str | None:
    """Cause the fault; returns the harm, also if the check itself fails."""
    try:
        return fault.happen()
    except Exception:  # noqa: BLE001, it is the answer
        return traceback.format_exc(limit=-4)


@contextmanager
def in_time(seconds: int = _LATE_S) -> Iterator[None]:
    """Raise TimeoutError in a block that takes longer; in the main thread only."""

    def late(*_: Any) -> None:
        raise TimeoutError(f"not over after {seconds} seconds, process {os.getpid()}")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)

"""Deadlines: the moment at which a search stops, by the wall clock or by the work that it was able to do.

A time limit is wall time. On a busy machine a process gets a fraction of it: ten seconds pass in which it
worked for half a second. A *patient* deadline passes only when the thread that asks has also worked for that
long, so that a search for any schedule at all does as much on a busy machine as on an idle one.
"""

from __future__ import annotations

import math
import time
from typing import Self

__all__ = ["NEVER", "Deadline"]


class Deadline:
    """A moment that lies some seconds ahead."""

    __slots__ = ("_cpu_end", "_end")

    def __init__(self, seconds: float, *, patient: bool = False) -> None:
        """Count from now.

        Args:
            seconds: of wall time; may be infinite.
            patient: True = the deadline passes when the calling thread has also used this much CPU time.
        """
        self._end = time.monotonic() + seconds
        self._cpu_end = time.thread_time() + seconds if patient else -math.inf

    @property
    def left_s(self) -> float:
        """Seconds until then, negative afterwards."""
        left = self._end - time.monotonic()
        return (
            left if left > 0 or math.isinf(self._cpu_end) else max(left, self._cpu_end - time.thread_time())
        )

    @property
    def passed(self) -> bool:
        """Whether the moment has come."""
        return self.left_s <= 0

    def part(self, share: float) -> Self:
        """A deadline of the same kind at ``share`` of the time that is left."""
        return type(self)(share * self.left_s, patient=not math.isinf(self._cpu_end))


NEVER = Deadline(math.inf)
"""A deadline that does not pass."""

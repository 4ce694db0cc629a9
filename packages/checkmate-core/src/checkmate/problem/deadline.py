"""Deadlines: the moment at which a search stops, in wall time or also in CPU time.

A time limit is wall time. On a busy machine a process gets a fraction of it, perhaps half a second of CPU
time in ten seconds. A *patient* deadline passes only when the calling thread has also used that much CPU
time. So a search for a first schedule does the same work on a busy machine as on an idle one.
"""

from __future__ import annotations

import math
import time
from typing import Self

__all__ = ["NEVER", "Deadline"]


class Deadline:
    """A moment some seconds ahead."""

    __slots__ = ("_cpu_end", "_end")

    def __init__(self, seconds: float, *, patient: bool = False) -> None:
        """Start now.

        Args:
            seconds: wall time in seconds; may be infinite.
            patient: True = the calling thread must also have used this much CPU time.
        """
        self._end = time.monotonic() + seconds
        self._cpu_end = time.thread_time() + seconds if patient else -math.inf

    @property
    def left_s(self) -> float:
        """Seconds until the deadline; negative afterwards."""
        left = self._end - time.monotonic()
        return (
            left if left > 0 or math.isinf(self._cpu_end) else max(left, self._cpu_end - time.thread_time())
        )

    @property
    def passed(self) -> bool:
        """Whether the deadline has passed."""
        return self.left_s <= 0

    def part(self, share: float) -> Self:
        """A deadline of the same kind after ``share`` of the remaining time."""
        return type(self)(share * self.left_s, patient=not math.isinf(self._cpu_end))


NEVER = Deadline(math.inf)
"""A deadline that does not pass."""

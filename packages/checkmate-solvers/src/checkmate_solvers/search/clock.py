"""The clock of one solve: its deadline, and whether a step can still finish before it.

Time limits are wall time. While no schedule is known, a *patient* deadline counts instead, which passes only
when this thread has also used the limit in CPU time: so a busy machine finds a first schedule, too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from checkmate import Problem
from checkmate.solving import Deadline, judging_s

__all__ = ["Clock"]


class Clock:
    """The deadlines of one solve; the time starts to run when the clock is made.

    Attributes:
        deadline: the time limit, or the end of the innermost :meth:`within` block.
        patient: the time limit as a patient deadline.
        started: when the clock was made, as ``time.monotonic()`` counts.
        is_patient: whether the patient deadline counts, as no schedule is known yet.
    """

    def __init__(self, problem: Problem) -> None:
        self.deadline = Deadline(problem.time_limit)
        self.patient = Deadline(problem.time_limit, patient=True)
        self.is_patient = True
        self.started = time.monotonic()
        self._graph = problem.graph

    @property
    def left_s(self) -> float:
        """Seconds until the deadline; negative afterwards."""
        return self.deadline.left_s

    @property
    def current(self) -> Deadline:
        """The deadline that counts now."""
        return self.patient if self.is_patient else self.deadline

    def has_time_for(self, simulations: float) -> bool:
        """Whether there is time for a step that costs as much as this many simulations of a schedule."""
        return self.current.left_s > simulations * judging_s(self._graph)

    @contextmanager
    def within(self, share: float) -> Iterator[None]:
        """Shorten the deadline to ``share`` of the remaining time inside this block."""
        end = self.deadline
        self.deadline = end.part(share)
        try:
            yield
        finally:
            self.deadline = end

"""The question: the cheapest schedule of a graph whose peak is within a byte budget.

In symbols::

    min cost(σ)  over schedules σ with  peak(σ) ≤ budget
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from checkmate.errors import BudgetError
from checkmate.model.graph import DFGraph, derived
from checkmate.model.schedule import Schedule
from checkmate.simulate import simulate

__all__ = ["OnProgress", "Problem", "Progress", "check_time_limit", "judging_s", "keep_all_peak"]


def keep_all_peak(graph: DFGraph) -> int:
    """Peak, in bytes, of computing every op once in base order and freeing after the last use.

    A budget that is a share, such as "60%", is a share of this peak.

    Raises:
        TypeError: if ``graph`` is not a DFGraph.

    >>> keep_all_peak(DFGraph.from_nodes(cost=[1, 1], size=[4, 2], deps=[[], [0]]))
    6
    """
    if not isinstance(graph, DFGraph):
        raise TypeError(
            f"graph is a {type(graph).__name__}, must be a DFGraph: read_graph(path) reads a file"
        )
    return _keep_all(graph)[0]


def judging_s(graph: DFGraph) -> float:
    """CPU seconds for building and judging the schedule that keeps everything, measured once per graph."""
    return _keep_all(graph)[1]


@derived
def _keep_all(graph: DFGraph) -> tuple[int, float]:
    started = time.thread_time()
    timeline = simulate(graph, Schedule.from_sequence(graph, range(graph.n_ops)))
    return timeline.peak, time.thread_time() - started


def check_time_limit(limit: object) -> None:
    """Raise ValueError unless ``limit`` is a positive number of seconds."""
    if not isinstance(limit, int | float | np.number) or not limit > 0:
        raise ValueError(f"time_limit is {limit!r}, must be > 0 seconds")


class Progress(NamedTuple):
    """One report of a running solver.

    Attributes:
        incumbent: cost of the best schedule so far; None while there is none.
        bound: proved lower bound on the cost.
        seconds: since the solver started.
        step: the current activity of the solver, for people.
    """

    incumbent: float | None
    bound: float
    seconds: float
    step: str

    @property
    def gap(self) -> float:
        """The greatest possible distance of the best schedule from the optimum, as a share of its cost.

        >>> Progress(incumbent=12.0, bound=9.0, seconds=0.5, step="min-cut").gap
        0.25
        """
        if self.incumbent is None or self.incumbent <= 0:
            return 0.0
        return max((self.incumbent - self.bound) / self.incumbent, 0.0)


OnProgress = Callable[[Progress], None]
"""A function that takes the reports of a running solver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A graph, a budget, and how hard to try.

    Attributes:
        graph: the training step.
        budget: bytes, > 0; bounds everything resident, graph inputs and ``fixed_size`` included.
        time_limit: seconds of wall time, after which a solver returns its best schedule. On a busy machine, a
            solver that has no schedule yet may search until it has used this much CPU time
            (:class:`~checkmate.problem.deadline.Deadline`).
        fixed_order: True = the first runs of the ops keep the base order.
        seed: for every random choice; the same seed gives the same schedule unless the time limit ends the
            search.
        threads: number of threads or processes that a solver may use.
        on_progress: called with each :class:`Progress`; may be None.
        start: a known valid schedule of the graph, with any peak; may be None. A solver that goes on from it
            says so by an attribute ``uses_start = True``; sweeps then ask it once more where another answer
            is better.
    """

    graph: DFGraph
    budget: int
    time_limit: float = 10.0
    fixed_order: bool = False
    seed: int = 0
    threads: int = 1
    on_progress: OnProgress | None = field(default=None, compare=False, repr=False)
    start: Schedule | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        budget: object = self.budget
        if isinstance(budget, bool) or not isinstance(budget, int) or budget <= 0:
            raise BudgetError(f"budget is {budget!r}, must be an integer > 0 (bytes)")
        check_time_limit(self.time_limit)
        for name, least in (("threads", 1), ("seed", 0)):
            value: object = getattr(self, name)
            if not isinstance(value, int | np.integer) or value < least:
                raise ValueError(f"{name} is {value!r}, must be an integer ≥ {least}")

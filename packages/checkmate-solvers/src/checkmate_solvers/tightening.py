r"""Tightening: lower the peak step by step, from the peak without recomputation to the least that is found.

With P the peak so far and F the floor of the graph, the next budget is P − s (P − F). The
sequence is repaired to fit it (``machine/drops.h``), with as many steps as the *effort* allows; a
few rounds of local search then remove computes that became needless. A success makes s larger and the effort
smaller, a failure the contrary: mostly a step fails because it asks for too much at once, and finding that
out should cost little. An effort below 1 also makes the repair colder. The first attempt leaves all first
runs where they are, the next ones move them.

The problem's budget only says where to stop, and changes no step: a peak that was reached once is reached
again.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from checkmate import DFGraph, Problem, floor
from checkmate.analysis import liveness, needed_ops
from checkmate.solving import NEVER, Deadline
from checkmate_solvers.machine.driver import Driver

__all__ = ["tightened"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    """The attempts, and within each the step s, the effort, and the local search after a success."""

    attempts: int = 6  # each with another seed; the second starts from the result of the first
    in_order_share: float = 0.5  # of the time, at most, for the first attempt, which moves no first runs
    step: float = 0.25  # s at first
    largest_step: float = 0.5  # s at most
    least_step: float = 1e-3  # s at least
    longer: float = 1.3  # factor of s after a success
    shorter: float = 0.5  # factor of s after a failure
    effort: float = 0.2  # at first and at least, in steps of a repair for each compute of the sequence
    most_effort: float = 20.0  # an attempt ends at this effort
    harder: float = 1.5  # factor of the effort after a failure; a success divides by it
    repair_steps: int = 100  # of a repair, beside those of the effort
    rounds: int = 100  # of local search after each success
    heat: float = 0.1  # temperature of these rounds, relative to the mean cost of the ops


_SETTINGS = _Settings()


def tightened(problem: Problem, deadline: Deadline = NEVER) -> list[int]:
    """The needed ops with repeats, in an order with the least peak that was found.

    >>> graph = DFGraph.from_nodes(cost=[1] * 4, size=[2, 4, 1, 1], deps=[[], [0], [1], [0, 2]])
    >>> tightened(Problem(graph=graph, budget=1))
    [0, 1, 2, 0, 3]
    """
    graph, fixed_order = problem.graph, problem.fixed_order
    lowest = max(problem.budget, floor(graph).size)
    once: list[int] = np.flatnonzero(needed_ops(graph)).tolist()
    best, peak = once, liveness(graph, once).peak
    for attempt in range(_SETTINGS.attempts):
        if peak <= lowest or deadline.passed:
            break
        in_order = fixed_order or attempt == 0
        until = deadline if fixed_order or attempt else deadline.part(_SETTINGS.in_order_share)
        driver = Driver(graph, fixed_order=in_order, seed=problem.seed + attempt)
        found = _descended(graph, best if attempt == 1 else once, driver, lowest, until)
        best, peak = min((best, peak), found, key=itemgetter(1))
    return best


def _descended(
    graph: DFGraph, start: list[int], driver: Driver, lowest: int, deadline: Deadline
) -> tuple[list[int], int]:
    """One attempt: lower the peak of a sequence until more effort helps no more; return ops and peak."""
    best, peak, end = start, liveness(graph, start).peak, floor(graph).size
    step, effort, heat = _SETTINGS.step, _SETTINGS.effort, _SETTINGS.heat * float(graph.costs.mean())
    while peak > lowest and effort < _SETTINGS.most_effort and not deadline.passed:
        room = max(end, min(peak - 1, int(peak - step * (peak - end)))) - graph.base_size
        most = int(effort * len(best)) + _SETTINGS.repair_steps
        driver.load(best)
        if driver.repair(room, most, deadline=deadline, noise=min(effort, 1.0)):
            driver.anneal(room, _SETTINGS.rounds, heat)
            best = driver.best.tolist()
            peak = liveness(graph, best).peak
            step = min(_SETTINGS.largest_step, step * _SETTINGS.longer)
            effort = max(_SETTINGS.effort, effort / _SETTINGS.harder)
        else:
            step = max(_SETTINGS.least_step, step * _SETTINGS.shorter)
            effort *= _SETTINGS.harder
    return best, peak

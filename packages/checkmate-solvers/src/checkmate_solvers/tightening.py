r"""The least peak: from keeping everything downwards, each sequence the start of the next.

With P the peak so far and F the floor of the graph, the next budget is P − s (P − F). The sequence is
repaired under it by machine code (see :mod:`checkmate_solvers.machine.drops`), with as many steps as the
*effort* allows; a few rounds of local search then remove computes that became needless. Success makes s
larger and the effort smaller, failure the contrary: mostly a step fails because it asks for too much at once,
and finding that out should cost little. An effort below 1 also makes the repair colder. It begins with all
first runs where they are, and moves them when that helps no more.

The budget only says where to stop, and changes no step: a peak that was reached once is reached again.
"""

from __future__ import annotations

from operator import itemgetter

import numpy as np

from checkmate import DFGraph, Problem, floor
from checkmate.analysis import liveness, needed_ops
from checkmate.solving import NEVER, Deadline
from checkmate_solvers.machine.driver import Driver

__all__ = ["tightened"]

_ATTEMPTS, _IN_ORDER_SHARE = 6, 0.5
"""Each has another seed. The first keeps all first runs where they are, and may use this share of the time if
they may move; the second goes on from there; others start again."""
_STEP, _LARGEST_STEP, _LEAST_STEP = 0.25, 0.5, 1e-3
"""s at first, and its limits."""
_LONGER, _SHORTER = 1.3, 0.5
"""Factors of s after success and after failure."""
_EFFORT, _MOST_EFFORT, _HARDER = 0.2, 20.0, 1.5
"""Steps of a repair for each compute of the sequence: at first, in the end, and their growth by a failure."""
_LEAST_STEPS = 100
"""Steps of a repair beside those."""
_ROUNDS, _HEAT = 100, 0.1
"""Rounds of local search after each success, and their temperature relative to the mean cost of the ops."""


def tightened(problem: Problem, deadline: Deadline = NEVER) -> list[int]:
    """The needed ops with repeats, in an order of the least peak that was found.

    Args:
        problem: the graph, the budget at which to stop, the rule of order, and the seed.
        deadline: stop when it has passed.

    >>> graph = DFGraph.from_nodes(cost=[1] * 4, size=[2, 4, 1, 1], deps=[[], [0], [1], [0, 2]])
    >>> tightened(Problem(graph=graph, budget=1))
    [0, 1, 2, 0, 3]
    """
    graph, fixed_order = problem.graph, problem.fixed_order
    lowest = max(problem.budget, floor(graph).size)
    once: list[int] = np.flatnonzero(needed_ops(graph)).tolist()
    best, peak = once, liveness(graph, once).peak
    for attempt in range(_ATTEMPTS):
        if peak <= lowest or deadline.passed:
            break
        in_order = fixed_order or attempt == 0
        until = deadline if fixed_order or attempt else deadline.part(_IN_ORDER_SHARE)
        driver = Driver(graph, fixed_order=in_order, seed=problem.seed + attempt)
        found = _descended(graph, best if attempt == 1 else once, driver, lowest, until)
        best, peak = min((best, peak), found, key=itemgetter(1))
    return best


def _descended(
    graph: DFGraph, start: list[int], driver: Driver, lowest: int, deadline: Deadline
) -> tuple[list[int], int]:
    """One attempt: descend from a sequence until more effort helps no more; return ops and peak."""
    best, peak = start, liveness(graph, start).peak
    end, step, effort, heat = floor(graph).size, _STEP, _EFFORT, _HEAT * float(graph.costs.mean())
    while peak > lowest and effort < _MOST_EFFORT and not deadline.passed:
        room = max(end, min(peak - 1, int(peak - step * (peak - end)))) - graph.base_size
        most = int(effort * len(best)) + _LEAST_STEPS
        driver.load(best)
        if driver.repair(room, most, deadline=deadline, noise=min(effort, 1.0)):
            driver.anneal(room, _ROUNDS, heat)
            best = driver.best.tolist()
            peak = liveness(graph, best).peak
            step, effort = min(_LARGEST_STEP, step * _LONGER), max(_EFFORT, effort / _HARDER)
        else:
            step, effort = max(_LEAST_STEP, step * _SHORTER), effort * _HARDER
    return best, peak

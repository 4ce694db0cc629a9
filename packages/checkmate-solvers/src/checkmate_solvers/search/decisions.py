"""Turn a decision, which tensors survive some moments, into a schedule that fits the budget.

If the decision's own schedule doesn't fit, local search repairs it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from checkmate import DFGraph, Schedule, floor, keep_all_peak, simulate
from checkmate.analysis import needed_ops
from checkmate.solving import sequence_from_moments
from checkmate_solvers.search.incumbent import Incumbent

__all__ = ["answer_easy_cases", "apply", "keep", "repair", "sequence_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    """Limits of a repair."""

    cost: float = 8  # of applying a decision, in simulations; it is skipped if less time is left
    repair_steps: int = 500  # of one repair, at most: a longer one mostly never ends, or ends at a high cost
    repairs: int = 3  # tried while no schedule is known; each draws other random numbers


_SETTINGS = _Settings()


def answer_easy_cases(best: Incumbent) -> bool:
    """Answer a budget below the floor, or with room for everything; return whether the search is done."""
    problem, needed = best.problem, needed_ops(best.problem.graph)
    if problem.budget < floor(problem.graph).size:
        best.raise_bound(math.inf, "floor")
        return True
    if not needed.all() or keep_all_peak(problem.graph) <= problem.budget:
        best.keep_if_better(np.flatnonzero(needed).tolist(), "keep-all")
    return best.done


def sequence_of(graph: DFGraph, kept: Mapping[int, npt.NDArray[np.bool_]]) -> list[int]:
    """The ops in order, with repeats, that keep exactly the decided tensors, whether that fits or not."""
    needed = needed_ops(graph)
    return [v for v in sequence_from_moments(graph, kept) if needed[v]]


def apply(best: Incumbent, kept: Mapping[int, npt.NDArray[np.bool_]], origin: str) -> None:
    """Make a schedule of a decision, repair it if it does not fit, and keep it if it is the best.

    ``kept`` says for each moment, by its op, which tensors survive it; shape ``[n_tensors]``.
    """
    if best.clock.has_time_for(_SETTINGS.cost):
        repair(best, sequence_of(best.problem.graph, kept), origin)


def keep(best: Incumbent, sequence: Sequence[int], origin: str) -> bool:
    """Remove needless computes of a sequence, keep it if it is the best; return whether it fits."""
    graph, budget = best.problem.graph, best.problem.budget
    timeline = simulate(graph, Schedule.from_sequence(graph, sequence))
    if timeline.peak > budget:
        return False
    if best.clock.has_time_for(_SETTINGS.cost):
        repair(best, sequence, origin)
    else:
        best.keep_if_better(timeline, origin)
    return True


def repair(best: Incumbent, sequence: Sequence[int], origin: str) -> None:
    """Bring a sequence of ops within the budget and keep it if it then is the best."""
    room = best.problem.budget - best.problem.graph.base_size
    for _ in range(1 if best.found_by else _SETTINGS.repairs):
        best.driver.load(sequence)
        if best.driver.repair(room, _SETTINGS.repair_steps, deadline=best.clock.deadline):
            best.keep_if_better(best.driver.best.tolist(), origin)
            break

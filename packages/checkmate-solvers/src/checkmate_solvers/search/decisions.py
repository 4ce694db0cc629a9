"""From a decision to a schedule: which tensors survive some moments, as ops in order that fit the budget.

Where the schedule of a decision doesn't fit, machine code repairs it. Without machine code, evictions follow
the decision within the budget instead.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from checkmate import DFGraph, Schedule, floor, keep_all_peak, simulate
from checkmate.analysis import needed_ops
from checkmate.heuristics import Weights, evicting_sequence, pruned
from checkmate.solving import sequence_from_moments
from checkmate_solvers.machine.code import available, is_awaited
from checkmate_solvers.search.incumbent import Incumbent

__all__ = [
    "answer_easy_cases",
    "apply",
    "await_machine_code",
    "has_machine_code",
    "keep",
    "repair",
    "sequence_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    """Limits of a repair by machine code, and of evictions and pruning, which replace it."""

    cost: float = 8  # of applying a decision, in simulations; it is skipped if less time is left
    repair_steps: int = 500  # of one repair, at most: a longer one mostly never ends, or ends at a high cost
    repairs: int = 3  # tried while no schedule is known; each draws other random numbers
    worse: float = 1.2  # an eviction gives up at this multiple of the incumbent's cost
    eviction_share: float = 0.2  # of the remaining time, at most, for one eviction
    pruning_share: float = 0.1  # of the remaining time, at most, for pruning
    pause_s: float = 0.1  # between two looks at whether the machine code is compiled


_SETTINGS = _Settings()
_WEIGHTS = (Weights(1, 1, 1, stale=True), Weights(1, 1, 1), Weights(1, 0, 1, stale=True), Weights(1, 1, 0.5))
"""How successive evictions choose the tensors that leave."""
_NO_MACHINE_CODE = "without the local search, which was not compiled or loaded in time"


def answer_easy_cases(best: Incumbent) -> bool:
    """Answer the two easy cases: a budget below the floor, and one with room for everything.

    Returns:
        Whether the search is done.
    """
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

    Args:
        best: receives the schedule.
        kept: for each moment, by its op, which tensors survive it; shape ``[n_tensors]``.
        origin: the step that decided this.
    """
    problem = best.problem
    if not best.clock.has_time_for(_SETTINGS.cost):
        return
    sequence = sequence_of(problem.graph, kept)
    if has_machine_code(best):
        repair(best, sequence, origin)
    elif not keep(best, sequence, origin):
        for weights in _WEIGHTS:
            evicted = evicting_sequence(
                problem.graph,
                problem.budget,
                weights,
                kept,
                ceiling=_SETTINGS.worse * best.cost,
                deadline=best.clock.deadline.part(_SETTINGS.eviction_share),
            )
            if evicted is not None:
                keep(best, evicted, f"{origin}, repaired")
            if best.done:
                break


def keep(best: Incumbent, sequence: Sequence[int], origin: str) -> bool:
    """Remove the computes that a sequence of ops doesn't need, and keep it if it fits and is the best.

    Returns:
        Whether the sequence is within the budget.
    """
    graph, budget = best.problem.graph, best.problem.budget
    timeline = simulate(graph, Schedule.from_sequence(graph, sequence))
    if timeline.peak > budget:
        return False
    able = best.clock.has_time_for(_SETTINGS.cost)
    if able and has_machine_code(best):
        repair(best, sequence, origin)
        return True
    best.keep_if_better(timeline, origin)
    until = best.clock.deadline.part(_SETTINGS.pruning_share)
    for fixed_order in {best.problem.fixed_order, True} if able else ():
        lean = pruned(graph, sequence, budget, fixed_order=fixed_order, deadline=until)
        best.keep_if_better(lean, origin)
    return True


def has_machine_code(best: Incumbent) -> bool:
    """Whether the machine code of the local search is loaded, or can be loaded in the time that is left.

    If it is neither, the answer is marked as provisional.
    """
    found = available(best.clock.current.left_s) is not None
    if not found:
        best.provisional = _NO_MACHINE_CODE
    return found


def await_machine_code(best: Incumbent) -> bool:
    """Wait for machine code that is being compiled, while time is left; return whether it is available."""
    while not (found := has_machine_code(best)) and not best.done and is_awaited():
        time.sleep(_SETTINGS.pause_s)
    return found


def repair(best: Incumbent, sequence: Sequence[int], origin: str) -> None:
    """Bring a sequence of ops within the budget by machine code, and keep it if it then is the best."""
    room = best.problem.budget - best.problem.graph.base_size
    for _ in range(1 if best.found_by else _SETTINGS.repairs):
        best.driver.load(sequence)
        if best.driver.repair(room, _SETTINGS.repair_steps, deadline=best.clock.deadline):
            best.keep_if_better(best.driver.best.tolist(), origin)
            break

"""From a decision to a schedule: follow it to the letter, and repair the sequence where it does not fit.

A decision says which tensors survive some moments. Repair needs machine code; without it, evictions follow
the decision within the budget instead.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

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
    "await_machine_code",
    "follow",
    "has_machine_code",
    "literal",
    "mend",
    "offer",
]

_STEPS = 500
"""Most steps of a repair: a longer one mostly never ends, or ends at a high cost."""
_TRIES = 3
"""How many repairs are tried while no schedule is known; each draws other random numbers."""
_WORSE = 1.2
"""Evictions give up at this multiple of the incumbent's cost."""
_WEIGHTS = (Weights(1, 1, 1, stale=True), Weights(1, 1, 1), Weights(1, 0, 1, stale=True), Weights(1, 1, 0.5))
_SHARE = 0.2
"""Share of the remaining time that one eviction may use; pruning half of it."""
_JUDGED = 8
"""Following a decision takes about as long as judging this many schedules."""
_PAUSE_S = 0.1
_NO_MACHINE_CODE = "without the local search, which was not compiled or loaded in time"


def answer_easy_cases(best: Incumbent) -> bool:
    """Try the two easy answers: the budget is below the floor, or has room for everything.

    Returns:
        Whether the search is done.
    """
    problem, needed = best.problem, needed_ops(best.problem.graph)
    if problem.budget < floor(problem.graph).size:
        best.prove(math.inf, "floor")
        return True
    if not needed.all() or keep_all_peak(problem.graph) <= problem.budget:
        best.keep_if_better(np.flatnonzero(needed).tolist(), "keep-all")
    return best.done


def literal(graph: DFGraph, keep: Mapping[int, npt.NDArray[np.bool_]]) -> list[int]:
    """The needed ops in the order that follows a decision to the letter, whether that fits or not."""
    needed = needed_ops(graph)
    return [v for v in sequence_from_moments(graph, keep) if needed[v]]


def follow(best: Incumbent, keep: Mapping[int, npt.NDArray[np.bool_]], origin: str) -> None:
    """Offer the schedule that keeps certain tensors at certain moments.

    Args:
        best: receives the schedule, repaired if it does not fit.
        keep: for each moment, by its op, which tensors survive it; shape ``[n_tensors]``.
        origin: the step that decided this.
    """
    problem = best.problem
    if not best.clock.has_time_to_judge(_JUDGED):
        return
    sequence = literal(problem.graph, keep)
    if has_machine_code(best):
        mend(best, sequence, origin)
    elif not offer(best, sequence, origin):
        for weights in _WEIGHTS:
            evicted = evicting_sequence(
                problem.graph,
                problem.budget,
                weights,
                keep,
                ceiling=_WORSE * best.cost,
                deadline=best.clock.deadline.part(_SHARE),
            )
            if evicted is not None:
                offer(best, evicted, f"{origin}, repaired")
            if best.done:
                break


def offer(best: Incumbent, sequence: Sequence[int], origin: str) -> bool:
    """Judge a sequence of ops without the computes that it does not need.

    Returns:
        Whether the sequence is within the budget.
    """
    graph, budget = best.problem.graph, best.problem.budget
    timeline = simulate(graph, Schedule.from_sequence(graph, sequence))
    if timeline.peak > budget:
        return False
    able = best.clock.has_time_to_judge(_JUDGED)
    if able and has_machine_code(best):
        mend(best, sequence, origin)
        return True
    best.keep_if_better(timeline, origin)
    until = best.clock.deadline.part(_SHARE / 2)
    for fixed_order in {best.problem.fixed_order, True} if able else ():
        lean = pruned(graph, sequence, budget, fixed_order=fixed_order, deadline=until)
        best.keep_if_better(lean, origin)
    return True


def has_machine_code(best: Incumbent) -> bool:
    """Whether the machine code of the local search is loaded, or can be in the time that is left.

    If not, the search is marked as provisional.
    """
    found = available(best.clock.current.left_s) is not None
    if not found:
        best.provisional = _NO_MACHINE_CODE
    return found


def await_machine_code(best: Incumbent) -> bool:
    """Wait while the machine code is being compiled and time is left; return whether it is available."""
    while not (found := has_machine_code(best)) and not best.done and is_awaited():
        time.sleep(_PAUSE_S)
    return found


def mend(best: Incumbent, sequence: Sequence[int], origin: str) -> None:
    """Bring a sequence within the budget by machine code; keep the result if that succeeds."""
    room = best.problem.budget - best.problem.graph.base_size
    for _ in range(1 if best.found_by else _TRIES):
        best.driver.load(sequence)
        if best.driver.repair(room, _STEPS, deadline=best.clock.deadline):
            best.keep_if_better(best.driver.best.tolist(), origin)
            break

"""A schedule whose backward pass runs more than once, with ``retain_graph=True``.

    saved tensors S ↦ first backward pass ↦ … ↦ last backward pass ↦ S is freed

Autograd then holds S to the end of the step. A smaller budget makes S smaller. So we lower the solver's
budget until the schedule's peak, with S held to the end, is within the budget of the step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from checkmate import DFGraph, Schedule, Solution, simulate
from checkmate.framework import schedule_of
from checkmate_torch.planning.decide import least_memory

__all__ = ["decide_for_repeats", "retain_graph"]

_TRIES = 6


def retain_graph(graph: DFGraph, schedule: Schedule, boundary: int) -> Schedule:
    """Remove the frees after the boundary, except of tensors that ops after the boundary make."""
    codes = schedule.codes
    after = np.arange(len(codes)) > np.flatnonzero(codes == boundary)[0]
    made = {t for v in codes[after & (codes >= 0)] for t in graph.ops[v].outputs}
    saved = [t for t in range(graph.n_tensors) if t not in made]
    return Schedule(codes[~(after & np.isin(~codes, saved))])


def decide_for_repeats(
    decide: Callable[[int], Solution], graph: DFGraph, boundary: int, budget: int
) -> Solution:
    """The best schedule found whose peak is within the budget although its saved tensors stay to the end.

    Args:
        decide: solves the graph within a number of bytes; the solution may have no schedule.
        graph: the step's graph; its backward pass runs more than once.
        boundary: the op between forward and backward pass.
        budget: of the step, in bytes.

    Returns:
        The solution; if none is within the budget, the one with the least peak, which is then its budget.
    """
    room, found = budget, []
    for _ in range(_TRIES):
        solution = decide(room)
        is_least = solution.schedule is None
        if is_least:
            solution = least_memory(graph)
        timeline = simulate(graph, retain_graph(graph, schedule_of(solution), boundary))
        found.append((timeline.peak, timeline, solution))
        if timeline.peak <= budget or is_least:
            break
        room = max(1, min(room, solution.peak or 0) - (timeline.peak - budget))
    peak, timeline, solution = min(found, key=lambda each: each[0])
    problem = replace(solution.problem, budget=max(budget, peak))
    return Solution.found(problem, timeline, solver=solution.solver)

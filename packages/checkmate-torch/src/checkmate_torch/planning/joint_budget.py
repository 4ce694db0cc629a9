"""The schedules of a step's calls, decided together once a step has shown which calls it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from checkmate import DFGraph, Problem, Solution
from checkmate.framework import decide
from checkmate.units import format_bytes, parse_budget
from checkmate_torch.distributed.ranks import Ranks, decided_together
from checkmate_torch.planning.calls import Call, decided_as_one, least_as_one, plain_peak_as_one
from checkmate_torch.planning.options import Options

__all__ = ["settle"]

_LEAST_S = 2.0
"""Seconds that each call has at least."""


def settle(calls: Sequence[Call], options: Options, warn: Callable[[str], None]) -> None:
    """Decide the schedules of a step's calls together, and note them with the planners of the calls.

    Args:
        calls: in the order of their forward passes.
        options: how to plan. A share is one of the peak of all calls.
        warn: called with a text if no schedules are within the budget; those of the least peak are noted.
    """
    budget = min(call.budget for call in calls)
    if options.is_share:
        budget = parse_budget(options.budget, plain_peak_as_one(calls))
    limit = max(_LEAST_S, options.time_limit / (2 * len(calls)))

    def decide_call(graph: DFGraph, room: int) -> Solution:
        each = replace(options, time_limit=limit)
        problem = Problem(graph=graph, budget=room, time_limit=limit, fixed_order=True)
        solve = partial(decide, graph, options=each, fixed_order=True, throw=False)
        return decided_together(Ranks.of(options.process_group), problem, solve)

    decisions = decided_as_one(calls, budget, decide_call)
    if decisions is None:
        decisions, least = least_as_one(calls)
        warn(
            f"no schedules for the {len(calls)} calls of a step together stay within {format_bytes(budget)}, "
            "and the step may exceed that; the least budget known to work for them is "
            f"{least} bytes ({format_bytes(least)})"
        )
    for decision in decisions:
        home = decision.call.home()
        if home is not None:
            home.decided.append(replace(decision, budget=budget))
            home.renewed |= decision.schedule is not decision.call.schedule

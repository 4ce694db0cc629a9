"""Deciding within a budget: from a priced graph and the options to a solution, or an error that explains."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from checkmate.files.cache import ScheduleCache
from checkmate.framework.memory import AUTO, HEADROOM, auto_budget
from checkmate.framework.options import Options
from checkmate.heuristics import PlainOrder
from checkmate.model.graph import DFGraph
from checkmate.model.schedule import Schedule
from checkmate.problem.problem import keep_all_peak
from checkmate.problem.solution import Solution
from checkmate.solving.api import solve
from checkmate.units import format_bytes

__all__ = ["decide", "in_bytes", "schedule_of"]

_Options = TypeVar("_Options", bound=Options)
_SOLVING = "solving"
_log = logging.getLogger(__name__)


def in_bytes(options: _Options, device: object, resident: int, obtainable: Callable[[], int]) -> _Options:
    """The options with the budget ``"auto"`` replaced by a number of bytes; others as they are.

    Args:
        options: of the step.
        device: that the step runs on, for the log.
        resident: bytes of the step that are allocated there already.
        obtainable: gives the bytes that this process can still allocate there.

    Raises:
        BudgetError: if the free memory of the device is unknown.
    """
    if options.budget != AUTO:
        return options
    budget = auto_budget(resident, obtainable())
    _log.info(
        "budget 'auto' on %s: %s, of which %s are held already; %.0f%% of the free memory stays free",
        device,
        format_bytes(budget),
        format_bytes(resident),
        100 * HEADROOM,
    )
    return replace(options, budget=budget)


def decide(
    graph: DFGraph,
    budget: int,
    options: Options,
    *,
    plain: PlainOrder | None = None,
    fixed_order: bool = False,
    start: Schedule | None = None,
    throw: bool = True,
) -> Solution:
    """The best schedule of a priced graph within a budget.

    Args:
        graph: priced.
        budget: bytes.
        options: the solver, its time limit, the cache, progress reports.
        plain: the framework's own order, if it is not the base order. Where it fits, no recomputation is
            needed, and it is taken although the base order may not fit.
        fixed_order: whether first runs keep the base order.
        start: as in :func:`~checkmate.solve`.
        throw: False = without a schedule return a solution that says so, instead of raising.

    Raises:
        InfeasibleBudgetError: if no schedule was found.
    """
    plain_fits = plain is not None and plain.peak(graph) <= budget < keep_all_peak(graph)
    with options.planning(_SOLVING):
        return solve(
            graph,
            budget,
            solver=plain if plain_fits and plain is not None else options.solver,
            time_limit=options.time_limit,
            fixed_order=fixed_order,
            on_progress=options.listener(_SOLVING),
            cache=ScheduleCache() if options.cache and not plain_fits else None,
            start=start,
            throw=throw,
        )


def schedule_of(solution: Solution) -> Schedule:
    """The schedule of a solution that must have one."""
    if solution.schedule is None:
        raise RuntimeError(f"a solution without a schedule: {solution!r}")
    return solution.schedule

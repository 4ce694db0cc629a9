"""Deciding within a budget: from a priced graph and the options to a solution, or an error that explains.

The budget ``"auto"`` is the memory that the device can still give to this process::

    auto = resident + obtainable · (1 − headroom)
    obtainable on the CPU = min(available memory, limit of each control group − its usage)

*Resident* is what the step holds already: parameters, variables, the batch. *Obtainable* is what the process
can still allocate on the device. The headroom covers what no plan knows: fragmentation, the scratch memory of
libraries, other processes. Only Linux reports available memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from checkmate.errors import BudgetError
from checkmate.files.cache import ScheduleCache
from checkmate.framework.options import AUTO, Options
from checkmate.heuristics import PlainOrder
from checkmate.model.graph import DFGraph
from checkmate.model.schedule import Schedule
from checkmate.problem.problem import keep_all_peak
from checkmate.problem.solution import Solution
from checkmate.solving.api import solve
from checkmate.units import format_bytes

__all__ = [
    "HEADROOM",
    "auto_budget",
    "available_memory",
    "decide",
    "in_bytes",
    "schedule_of",
    "unknown_memory",
]

HEADROOM = 0.1
"""Share of the obtainable bytes that ``"auto"`` leaves free."""

_GROUPS = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))
"""Limit and usage of a container's control group, in both versions of control groups."""


_Options = TypeVar("_Options", bound=Options)
_SOLVING = "solving"
_log = logging.getLogger(__name__)


def auto_budget(resident: int, obtainable: int) -> int:
    """The budget ``"auto"`` in bytes, of the bytes that are resident and obtainable.

    >>> auto_budget(100, 1000)
    1000
    """
    return resident + int(obtainable * (1 - HEADROOM))


def unknown_memory(device: object) -> BudgetError:
    """The error for a device whose free memory is unknown."""
    return BudgetError(
        f"the free memory of {device} is unknown: write bytes ('8GiB') or a share ('60%') "
        "in the place of 'auto'"
    )


def available_memory(root: Path = Path("/")) -> int:
    """Bytes of the system's memory that this process can still allocate, on Linux.

    The smaller of the kernel's ``MemAvailable`` and the rest of the control group's limit; ``root`` is the
    folder that holds ``proc`` and ``sys``.

    Raises:
        BudgetError: on other systems.
    """
    try:
        lines = (root / "proc/meminfo").read_text(encoding="utf-8").splitlines()
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        available = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError, IndexError) as error:
        raise unknown_memory("this system") from error
    groups = root / "sys/fs/cgroup"
    limits = (_left_in_group(groups / limit, groups / usage) for limit, usage in _GROUPS)
    return min([available, *(left for left in limits if left is not None)])


def _left_in_group(limit: Path, usage: Path) -> int | None:
    """Bytes left below a control group's limit; None if the group has no limit."""
    try:
        return max(int(limit.read_text()) - int(usage.read_text()), 0)
    except (OSError, ValueError):  # no such group, or "max"
        return None


def in_bytes(options: _Options, device: object, resident: int, obtainable: Callable[[], int]) -> _Options:
    """The options with the budget ``"auto"`` replaced by bytes; other budgets are unchanged.

    Args:
        options: the options of the step.
        device: the device that the step runs on, for the log.
        resident: bytes that the step holds already.
        obtainable: returns the bytes that the process can still allocate; called for ``"auto"`` only.

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
        plain: the framework's own order, if it is not the base order. If it fits the budget it is taken, as
            it recomputes nothing, even where the base order does not fit.
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

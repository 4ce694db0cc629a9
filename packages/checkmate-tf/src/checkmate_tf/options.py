"""How to plan a step: the settings that every way in shares."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from checkmate.plugins import CostModel, Solver, checked_cost_model
from checkmate.problem import OnProgress
from checkmate.units import Budget, parse_budget, parse_bytes
from checkmate_tf.available import AUTO

__all__ = ["Options"]

_LARGEST = 2**62
"""Stands in for the plain step's peak, which is unknown before tracing, when a budget is checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to plan; the same for every way in.

    Attributes:
        budget: bytes of everything that the step holds at once, a share of the plain step's peak, or
            ``"auto"``, what the device has left.
        solver: name of an installed solver, or a solver.
        time_limit: seconds for the solver, for each plan.
        cost_model: ``"profiled"``, ``"roofline"``, ``"flops"``, the name of an installed cost model, or a
            cost model; see :mod:`checkmate_tf.costs`.
        workspaces: whether the workspace of each op is measured, without which the peak is not bounded.
        reserve: bytes that the step holds besides.
        cache: whether measured costs and schedules are kept on disk, and taken from there.
        on_progress: called while ops are timed and while the solver runs.
    """

    budget: Budget = AUTO
    solver: str | Solver = "auto"
    time_limit: float = 10.0
    cost_model: str | CostModel = "profiled"
    workspaces: bool = True
    reserve: int = 0
    cache: bool = True
    on_progress: OnProgress | None = field(default=None, repr=False)

    @classmethod
    def parse(
        cls,
        *,
        budget: Budget = AUTO,
        solver: str | Solver = "auto",
        time_limit: float = 10.0,
        cost_model: str | CostModel = "profiled",
        workspaces: bool = True,
        reserve: int | str = 0,
        cache: bool = True,
        on_progress: OnProgress | None = None,
    ) -> Self:
        """Read the options as users write them, so that a mistake shows before anything is traced.

        Raises:
            BudgetError: if the budget, or another number of bytes, can't be read.
            TypeError: if what is passed for a cost model can't be one.
        """
        if budget != AUTO:
            parse_budget(budget, whole=_LARGEST)
        return cls(
            budget=budget,
            solver=solver,
            time_limit=time_limit,
            cost_model=checked_cost_model(cost_model),
            workspaces=bool(workspaces),
            reserve=parse_bytes(reserve),
            cache=bool(cache),
            on_progress=on_progress,
        )

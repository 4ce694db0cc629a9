"""How to plan a training step: the settings that every face shares, and the two steps that follow them.

priced(traced) = traced with costs and workspaces      decided(graph) = the schedule within the budget
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from torch.fx import Node

from checkmate import DFGraph, ScheduleCache, Solution
from checkmate.api import solve
from checkmate.plugins import CostModel, Solver
from checkmate.units import Budget, parse_budget, parse_bytes
from checkmate_torch.costs import OnProgress, checked_cost_model, price

__all__ = ["Options"]

_LARGEST = 2**62
"""Stands in for the plain step's peak, which is unknown before tracing, when a budget is checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to plan: the options of the backend.

    Attributes:
        budget: bytes of everything that the step holds at once, or a share of the plain step's peak.
        solver: name of an installed solver, or a solver.
        time_limit: seconds for the solver, for each traced graph.
        reserve: bytes that the step holds besides what is traced, e.g. optimizer state.
        loss_bytes: bytes that a loss computed outside of the model keeps to the end of the step, targets
            included; None = twice the bytes of the model's outputs; 0 = the model computes its loss itself.
        cost_model: ``"profiled"``, ``"roofline"``, ``"flops"``, the name of an installed cost model, or a
            cost model; see :mod:`checkmate_torch.costs`. Workspaces are measured whatever it is.
        cache: whether measured costs and schedules are kept on disk, and taken from there.
        on_progress: called while ops are timed and while the solver runs.
    """

    budget: Budget
    solver: str | Solver = "auto"
    time_limit: float = 10.0
    reserve: int = 0
    loss_bytes: int | None = None
    cost_model: str | CostModel = "profiled"
    cache: bool = True
    on_progress: OnProgress | None = field(default=None, repr=False)

    @classmethod
    def parse(
        cls,
        *,
        budget: Budget,
        solver: str | Solver = "auto",
        time_limit: float = 10.0,
        reserve: int | str = 0,
        loss_bytes: int | str | None = None,
        cost_model: str | CostModel = "profiled",
        cache: bool = True,
        on_progress: OnProgress | None = None,
    ) -> Self:
        """Read the options as users write them, so that a mistake shows before anything is traced.

        Raises:
            BudgetError: if the budget, or another number of bytes, can't be read.
            TypeError: if what is passed for a cost model can't be one.
        """
        parse_budget(budget, whole=_LARGEST)
        return cls(
            budget=budget,
            solver=solver,
            time_limit=time_limit,
            reserve=parse_bytes(reserve),
            loss_bytes=None if loss_bytes is None else parse_bytes(loss_bytes),
            cost_model=checked_cost_model(cost_model),
            cache=bool(cache),
            on_progress=on_progress,
        )

    def priced(self, graph: DFGraph, nodes: Sequence[Node | None]) -> DFGraph:
        """The graph with the cost model's costs, and with measured workspaces.

        Args:
            graph: without costs.
            nodes: the FX node of each op; None = it costs nothing.
        """
        return price(graph, nodes, self.cost_model, on_disk=self.cache, on_progress=self.on_progress)

    def decided(self, graph: DFGraph) -> Solution:
        """The best schedule within the budget; first runs keep the base order.

        Raises:
            InfeasibleBudgetError: if none was found.
        """
        return solve(
            graph,
            self.budget,
            solver=self.solver,
            time_limit=self.time_limit,
            fixed_order=True,
            on_progress=self.on_progress,
            cache=ScheduleCache() if self.cache else None,
        )

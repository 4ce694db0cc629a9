"""How to plan a training step: the settings that every face shares, and the two steps that follow them.

priced(traced) = traced with costs and workspaces      decided(graph) = the schedule within the budget
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Self

import torch
from torch.fx import Node
from torch.optim import Optimizer

from checkmate import DFGraph, InfeasibleBudgetError, ScheduleCache, Solution
from checkmate.api import solve
from checkmate.plugins import CostModel, Solver, checked_cost_model
from checkmate.problem import OnProgress, Problem, keep_all_peak
from checkmate.report import Account
from checkmate.units import Budget, format_bytes, parse_budget, parse_bytes
from checkmate_torch.available import AUTO, HEADROOM, auto_budget, optimizer_bytes
from checkmate_torch.costs import price
from checkmate_torch.distributed import GroupChoice, Ranks, checked_group, decided_together, priced_together
from checkmate_torch.lowering import Lowering, checked_lowering

__all__ = ["Options"]

_log = logging.getLogger(__name__)
_LARGEST = 2**62
"""Stands in for the plain step's peak, which is unknown before tracing, when a budget is checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to plan: the options of the backend.

    Attributes:
        budget: bytes of everything that the step holds at once, a share of the plain step's peak, or
            ``"auto"``, what the device has left.
        solver: name of an installed solver, or a solver.
        time_limit: seconds for the solver, for each traced graph.
        reserve: bytes that the step holds besides what is traced.
        optimizer_bytes: the optimizer's state after its first step, in bytes; held besides, too.
        loss_bytes: bytes that a loss computed outside of the model keeps to the end of the step, targets
            included; None = twice the bytes of the model's outputs; 0 = the model computes its loss itself.
        cost_model: ``"profiled"``, ``"roofline"``, ``"flops"``, the name of an installed cost model, or a
            cost model; see :mod:`checkmate_torch.costs`.
        workspaces: whether the workspace of each op is measured, without which the peak is not bounded.
        cache: whether measured costs and schedules are kept on disk, and taken from there.
        on_progress: called while ops are timed and while the solver runs.
        process_group: which ranks plan together; see :mod:`checkmate_torch.distributed`.
        lowering: ``"eager"`` or ``"inductor"``; see :mod:`checkmate_torch.lowering`.
    """

    budget: Budget
    solver: str | Solver = "auto"
    time_limit: float = 10.0
    reserve: int = 0
    optimizer_bytes: int = 0
    loss_bytes: int | None = None
    cost_model: str | CostModel = "profiled"
    workspaces: bool = True
    cache: bool = True
    on_progress: OnProgress | None = field(default=None, repr=False)
    process_group: GroupChoice = "alone"
    lowering: Lowering = "eager"

    @classmethod
    def parse(
        cls,
        *,
        budget: Budget,
        solver: str | Solver = "auto",
        time_limit: float = 10.0,
        reserve: int | str = 0,
        optimizer: Optimizer | None = None,
        loss_bytes: int | str | None = None,
        cost_model: str | CostModel = "profiled",
        workspaces: bool = True,
        cache: bool = True,
        on_progress: OnProgress | None = None,
        process_group: GroupChoice = "alone",
        lowering: Lowering = "eager",
    ) -> Self:
        """Read the options as users write them, so that a mistake shows before anything is traced.

        Raises:
            BudgetError: if the budget, or another number of bytes, can't be read, or the optimizer's state
                can't be foreseen.
            TypeError: if what is passed for a cost model, or for a process group, can't be one.
            ValueError: if there is no such lowering.
        """
        if budget != AUTO:
            parse_budget(budget, whole=_LARGEST)
        return cls(
            budget=budget,
            solver=solver,
            time_limit=time_limit,
            reserve=parse_bytes(reserve),
            optimizer_bytes=0 if optimizer is None else optimizer_bytes(optimizer),
            loss_bytes=None if loss_bytes is None else parse_bytes(loss_bytes),
            cost_model=checked_cost_model(cost_model),
            workspaces=workspaces,
            cache=bool(cache),
            on_progress=on_progress,
            process_group=checked_group(process_group),
            lowering=checked_lowering(lowering),
        )

    def priced(self, graph: DFGraph, nodes: Sequence[Node | None]) -> DFGraph:
        """The graph with the cost model's costs, and with measured workspaces.

        Args:
            graph: without costs.
            nodes: the FX node of each op; None = it costs nothing.

        Raises:
            RankError: if the ranks that plan together have different graphs.
        """
        measured = partial(
            price,
            nodes=nodes,
            cost_model=self.cost_model,
            workspaces=self.workspaces,
            on_disk=self.cache,
            on_progress=self.on_progress,
        )
        return priced_together(Ranks.of(self.process_group), graph, measured)

    def on(self, device: torch.device, resident: int) -> Self:
        """The options with ``"auto"`` replaced by what the device has left now.

        Args:
            device: that the step runs on.
            resident: bytes of the step that are allocated there already.

        Raises:
            BudgetError: if what the device has left is not known.
        """
        if self.budget != AUTO:
            return self
        budget = auto_budget(device, resident)
        _log.info(
            "budget 'auto' on %s: %s, of which %s are held already; %.0f%% of what is left stays free",
            device,
            format_bytes(budget),
            format_bytes(resident),
            100 * HEADROOM,
        )
        return replace(self, budget=budget)

    def decided(
        self,
        graph: DFGraph,
        account: Account | None = None,
        *,
        fixed_order: bool = True,
        throw: bool = True,
    ) -> Solution:
        """The best schedule within the budget.

        Args:
            graph: priced.
            account: what its bytes are held for, for the error.
            fixed_order: whether first runs keep the base order.
            throw: False = a solution without a schedule instead of an error.

        Raises:
            InfeasibleBudgetError: if none was found; where the budget is below what parameters, gradients and
                the like need without any activation, it says so.
            RankError: if not all ranks that plan together ask.
        """
        solved = partial(
            solve,
            graph,
            solver=self.solver,
            time_limit=self.time_limit,
            fixed_order=fixed_order,
            on_progress=self.on_progress,
            cache=ScheduleCache() if self.cache else None,
            throw=throw,
        )
        budget = parse_budget(self.budget, keep_all_peak(graph))
        try:
            problem = Problem(graph=graph, budget=budget, time_limit=self.time_limit, fixed_order=fixed_order)
            return decided_together(Ranks.of(self.process_group), problem, solved)
        except InfeasibleBudgetError as error:
            raise (error if account is None else account.told(error, graph)) from None

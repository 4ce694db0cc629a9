"""The steps that all planners share: price a traced graph, read the budget in bytes, decide the schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch.fx import Node

from checkmate import DFGraph, InfeasibleBudgetError, Problem, Solution, keep_all_peak, minimum_budget
from checkmate.framework import decide, in_bytes
from checkmate.heuristics import PlainOrder
from checkmate.report import Account, Kind
from checkmate.units import format_bytes, parse_budget
from checkmate_torch.costs.price import price
from checkmate_torch.distributed.ranks import Ranks, decided_together, priced_together
from checkmate_torch.ops.device import obtainable_bytes
from checkmate_torch.planning.options import Options
from checkmate_torch.tracing.traced_graph import TracedGraph

__all__ = ["LEAST_S", "WORTH_A_HINT", "Whole", "budget_bytes", "decide_step", "least_memory", "price_step"]

_GUESSED = (
    "%s of that are a rule of thumb for the loss outside of the model: pass loss=, a function of the model's "
    "output, to count its own bytes. Or raise the budget, or make the batch smaller."
)
WORTH_A_HINT = 0.1
"""Share of the floor from which on a guessed loss, or outputs of the model, are named in the error."""
LEAST_S = 2.0
"""Seconds to search for the least peak; also the shortest time limit for solving one of several graphs."""


@dataclass(slots=True)
class Whole:
    """What a budget is a share of: the largest peak of plain PyTorch among the steps so far.

    So the bytes of a share never fall, and a later step that needs no more has no smaller budget.

    Attributes:
        size: in bytes.
    """

    size: int = 0

    def grown(self, peak: int) -> int:
        """The size, now that a step of this plain peak is known."""
        self.size = max(self.size, peak)
        return self.size


def price_step(options: Options, traced: TracedGraph, nodes: Sequence[Node | None]) -> TracedGraph:
    """Price a traced step by the options' cost model: costs and workspaces, the same on all ranks.

    Args:
        options: how to plan.
        traced: the step without costs.
        nodes: the FX node to price for each op; None = it costs nothing.

    Raises:
        RankError: if the ranks that plan together have different graphs. Else as
            :func:`checkmate_torch.costs.price.price`.
    """
    measured = partial(
        price,
        nodes=nodes,
        cost_model=options.cost_model,
        workspaces=options.workspaces,
        on_disk=options.cache,
        on_progress=options.listener(),
    )
    graph = priced_together(Ranks.of(options.process_group), traced.graph, measured)
    return replace(traced, graph=graph)


def decide_step(
    options: Options,
    graph: DFGraph,
    account: Account,
    allocated: tuple[torch.device, int],
    *,
    plain: PlainOrder | None = None,
    plain_peak: int | None = None,
    fixed_order: bool = True,
    throw: bool = True,
) -> Solution:
    """The best schedule within the budget, the same on all ranks that plan together.

    Args:
        options: how to plan.
        graph: priced.
        account: what the graph's bytes are used for, to explain the error.
        allocated: the device of the step, and the bytes of the step that are allocated there already.
        plain: PyTorch's own order, if it is not the base order.
        plain_peak: peak of plain PyTorch in bytes, of which a budget may be a share; None = the peak of
            ``plain``, or without ``plain``, of the base order.
        fixed_order: whether first runs keep the base order.
        throw: False = if no schedule is found, return a solution without one instead of raising.

    Raises:
        InfeasibleBudgetError: if no schedule was found; says so if the budget is below the bytes of
            parameters, gradients and other tensors besides activations.
        RankError: unless all ranks that plan together ask for this decision.
    """
    if plain_peak is None:
        plain_peak = keep_all_peak(graph) if plain is None else plain.peak(graph)
    budget = budget_bytes(options, allocated, plain_peak)
    problem = Problem(graph=graph, budget=budget, time_limit=options.time_limit, fixed_order=fixed_order)

    def solve(budget: int) -> Solution:
        return decide(graph, budget, options, plain=plain, fixed_order=fixed_order, throw=throw)

    try:
        return decided_together(Ranks.of(options.process_group), problem, solve)
    except InfeasibleBudgetError as error:
        known = vars(account.explained(error, graph, plain_peak))
        guess = 0 if options.loss_bytes is not None else _loss_charge(graph, account)
        if guess >= max(1, WORTH_A_HINT * error.floor):
            known["advice"] = _GUESSED % format_bytes(guess)
        raise InfeasibleBudgetError(**known) from None


def _loss_charge(graph: DFGraph, account: Account) -> int:
    """Bytes for a loss outside of the model besides outputs and their gradients; 0 if it is inside."""
    for op in graph.ops:
        kept = sum(graph.tensors[t].size for t in op.outputs if account.kinds[t] is Kind.LOSS)
        if kept and op.workspace:
            return kept + op.workspace
    return 0


def budget_bytes(options: Options, allocated: tuple[torch.device, int], plain_peak: int) -> int:
    """The budget in bytes; a share is taken of ``plain_peak``, the peak of plain PyTorch in bytes."""
    device, resident = allocated
    options = in_bytes(options, device, resident, partial(obtainable_bytes, device))
    return parse_budget(options.budget, plain_peak)


def least_memory(graph: DFGraph, time_limit: float = LEAST_S) -> Solution:
    """The schedule with the least peak found that keeps the base order; the peak is the solution's budget."""
    return minimum_budget(graph, fixed_order=True, time_limit=time_limit)

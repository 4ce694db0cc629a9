"""Fused kernels in a plan: chains of ops before the decision, windows of the schedule after it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch.fx import GraphModule, Node

from checkmate import InfeasibleBudgetError
from checkmate_torch.distributed.ranks import Ranks
from checkmate_torch.planning.decide import price_step
from checkmate_torch.planning.options import Options
from checkmate_torch.running.fusing import (
    Measuring,
    fuse_chains,
    in_plain_format,
    undo,
    with_channels_last,
)
from checkmate_torch.tracing.traced_graph import TracedGraph

__all__ = ["Fusing", "fused_or_not", "priced_with_chains"]

_Call = TypeVar("_Call")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fusing:
    """How the ops of one captured graph are fused.

    Attributes:
        measuring: of the kernels.
        moved: nodes of the captured graph that give images another memory format than the model does.
    """

    measuring: Measuring
    moved: Sequence[Node]


def fused_or_not(gm: GraphModule, options: Options, compiled: Callable[[Fusing | None], _Call]) -> _Call:
    """Compile a captured graph with fused ops, in the memory format that kernels are the fastest in.

    If no schedule of fused ops is within the budget, it is compiled once more as it is, with single ops.

    Args:
        gm: what Dynamo captured.
        options: how to plan.
        compiled: plans and compiles it; None = each op runs alone.

    Raises:
        InfeasibleBudgetError: if that fails, too: the error that names the smaller budget.
    """
    ranks = Ranks.of(options.process_group)
    measuring = Measuring(on_disk=options.cache, on_progress=options.listener(), ranks=ranks)
    moved = with_channels_last(gm)
    try:
        return compiled(Fusing(measuring=measuring, moved=moved))
    except InfeasibleBudgetError as error:
        undo(gm, moved)
        _log.warning("no schedule of fused ops is within the budget: trying single ops")
        try:
            return compiled(None)
        except InfeasibleBudgetError as other:
            raise min(error, other, key=lambda e: e.minimum or math.inf) from None


def priced_with_chains(
    trace: Callable[[], TracedGraph], options: Options, fusing: Fusing | None
) -> tuple[TracedGraph, TracedGraph]:
    """The priced step to decide for, and the same step as plain PyTorch runs it, without fused ops.

    Args:
        trace: traces the joint graph, whose chains are fused in between, and does not price it.
        options: with the cost model.
        fusing: None = each op runs alone.
    """
    unpriced = trace()
    traced = plain = price_step(options, unpriced, unpriced.nodes)
    if fusing is None:
        return traced, plain
    if fusing.moved:
        plain = price_step(options, unpriced, in_plain_format(unpriced.nodes))
    if fuse_chains(traced, fusing.measuring):
        again = trace()
        traced = price_step(options, again, again.nodes)
    return traced, plain

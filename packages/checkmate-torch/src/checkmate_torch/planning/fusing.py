"""Fuse the ops of a plan: chains of ops before a schedule is decided, windows of the schedule afterwards."""

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
        measuring: how kernels are measured: cache, progress, ranks.
        moved: nodes added to the captured graph, which change the memory format of images.
    """

    measuring: Measuring
    moved: Sequence[Node]


def fused_or_not(gm: GraphModule, options: Options, compiled: Callable[[Fusing | None], _Call]) -> _Call:
    """Compile a captured graph with fused ops, in the memory format in which kernels are fastest.

    If no schedule of fused ops is within the budget, compile the unchanged graph with single ops.

    Args:
        gm: what Dynamo captured.
        options: how to plan.
        compiled: function that plans and compiles the graph; its argument None = each op runs alone.

    Raises:
        InfeasibleBudgetError: if single ops fail too; of both errors, the one that names the smaller budget.
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
        trace: traces the joint graph without pricing it; called again once chains are fused.
        options: how to price.
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

"""Fused kernels in a planner: chains of the joint graph before it decides, windows of the schedule after."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from torch.fx import GraphModule, Node

from checkmate import DFGraph, InfeasibleBudgetError, Problem, Schedule
from checkmate_torch.distributed.ranks import Ranks
from checkmate_torch.planning.decide import price_step
from checkmate_torch.planning.options import Options
from checkmate_torch.planning.step_plan import Given
from checkmate_torch.running.fusing import (
    Fusion,
    Measuring,
    fuse_chains,
    fused,
    in_plain_format,
    undo,
    with_channels_last,
)
from checkmate_torch.tracing.traced_graph import TracedGraph

__all__ = ["Fuser", "Plain"]

_Call = TypeVar("_Call")
_log = logging.getLogger(__name__)


class Plain(NamedTuple):
    """A step as PyTorch runs it, as far as workspaces are concerned.

    Attributes:
        graph: priced.
        nodes: the node of each op.
    """

    graph: DFGraph
    nodes: Sequence[Node | None]


@dataclass(slots=True, kw_only=True, eq=False)
class Fuser:
    """Traces, prices and fuses one step. Without ``lowering="inductor"`` nothing is fused.

    Attributes:
        options: of the planner.
        given: a schedule that brings its own costs, and is followed op by op; None = the step is decided.
        moved: nodes of the captured graph that give images another memory format than the model does.
        gave_up: whether fused ops need more memory than there is.
    """

    options: Options
    given: Given | None
    moved: Sequence[Node] = ()
    gave_up: bool = False

    @property
    def is_on(self) -> bool:
        """Whether ops are fused at all."""
        return self.options.lowering == "inductor" and self.given is None and not self.gave_up

    def planned(self, gm: GraphModule, compiled: Callable[[], _Call]) -> _Call:
        """Compile a captured graph in the memory format that kernels are the fastest in.

        If no schedule of fused ops is within the budget, it is compiled once more as it is, with single ops.

        Args:
            gm: what Dynamo captured.
            compiled: plans and compiles it, and asks this fuser.

        Raises:
            InfeasibleBudgetError: if that fails, too: the error that names the smaller budget.
        """
        if not self.is_on:
            return compiled()
        self.moved = with_channels_last(gm)
        try:
            return compiled()
        except InfeasibleBudgetError as error:
            undo(gm, self.moved)
            self.moved, self.gave_up = (), True
            _log.warning("no schedule of fused ops is within the budget: trying single ops")
            try:
                return compiled()
            except InfeasibleBudgetError as other:
                raise min(error, other, key=lambda e: e.minimum or math.inf) from None

    def traced(self, trace: Callable[[], TracedGraph]) -> tuple[TracedGraph, Plain]:
        """The step to decide for, and the same step without fused ops.

        Args:
            trace: traces the joint graph, whose chains are fused in between, and does not price it.
        """
        unpriced = trace()
        traced = self._priced(unpriced)
        plain = Plain(traced.graph, traced.nodes)
        if self.moved:
            nodes = in_plain_format(traced.nodes)
            plain = Plain(price_step(self.options, unpriced.graph, nodes), traced.nodes)
        if self.is_on and fuse_chains(traced, self._measuring):
            traced = self._priced(trace())
        return traced, plain

    def program(self, traced: TracedGraph, schedule: Schedule, problem: Problem) -> Fusion | None:
        """The program of a decided step; None if ops are not fused.

        Args:
            traced: the step.
            schedule: of its graph, within the budget.
            problem: that was solved.
        """
        if not self.is_on:
            return None
        return fused(replace(traced, graph=problem.graph), schedule, problem.budget, self._measuring)

    def _priced(self, traced: TracedGraph) -> TracedGraph:
        if self.given is not None:
            return traced
        return replace(traced, graph=price_step(self.options, traced.graph, traced.nodes))

    @property
    def _measuring(self) -> Measuring:
        options = self.options
        ranks = Ranks.of(options.process_group)
        return Measuring(on_disk=options.cache, on_progress=options.listener(), ranks=ranks)

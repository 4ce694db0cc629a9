"""The values that the stages of planning hand on, and the stages in which the two kinds of steps differ.

    gm ─capture→ Captured ─price→ PricedStep ─decide→ Solution ─fuse→ Schedule ─emit→ Halves

A :class:`Step` says how its kind of step is captured, priced, decided and emitted; the planner does the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from torch.fx import GraphModule

from checkmate import DFGraph, Schedule, Solution
from checkmate.framework import schedule_of
from checkmate.heuristics import PlainOrder
from checkmate.report import Account
from checkmate_torch.memory.account import ResidentBytes
from checkmate_torch.memory.plain_step import PlainStep
from checkmate_torch.ops.capturable import Capturable, Obstacle
from checkmate_torch.optimizer.whole_step import StepGraph, without_late_reads
from checkmate_torch.planning.decide import Whole
from checkmate_torch.planning.divided import Divided
from checkmate_torch.planning.fusing import Fusing, priced_with_chains
from checkmate_torch.planning.nested_calls.calls import Decision, PlannedCall
from checkmate_torch.planning.nested_calls.changing_sizes import ChangingSizes
from checkmate_torch.planning.options import Options
from checkmate_torch.planning.step_plan import GivenSchedule
from checkmate_torch.private import Halves, Joint
from checkmate_torch.running.fusing import Fusion
from checkmate_torch.tracing.loss_bytes import LossBytes
from checkmate_torch.tracing.traced_graph import TracedGraph

__all__ = ["Captured", "PricedStep", "Step"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Captured:
    """A graph that Dynamo captured, and what was found around it.

    Attributes:
        inputs: example inputs; real tensors, except in a trace ahead.
        holdings: what is resident while the graph runs.
        plain: the step as eager PyTorch runs it; None = it can't be followed.
        plain_now: the same with the sizes of this call, where it is planned for larger ones, too.
        loss: bytes of the caller's loss; None = unknown, 0 = the graph computes it.
        continues: whether the graph ends at a graph break, so that others follow.
        buffers: the inputs, by number, that those may overwrite before the backward pass.
        is_inside: whether backward passes of earlier calls are due.
        on_host: calls that put tensors on the CPU.
    """

    inputs: Sequence[object]
    holdings: ResidentBytes
    plain: PlainStep | None
    plain_now: PlainStep | None = None
    loss: int | LossBytes | None = 0
    continues: bool = False
    buffers: Sequence[int] = ()
    is_inside: bool = False
    on_host: tuple[Obstacle, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PricedStep:
    """A traced step with costs and workspaces, ready to be decided.

    Attributes:
        captured: where it comes from.
        traced: its graph.
        holdings: what is resident while it runs.
        account: the use of each byte of its graph.
        plain_peak: predicted peak of plain PyTorch, in bytes; None = it is unknown.
        peak_now: the same with the sizes of this call.
        plain: PyTorch's own order, if it is not the base order.
        updates: the updates of the optimizer, if they are part of the graph.
        sizes: those that may change from run to run.
        known: the call of this graph, if it was planned before.
        decision: made for this graph together with the other calls of its step, if there is one.
        is_provisional: whether it is one of several calls of a step that are not all known yet.
        divided: what runs in pieces; None = nothing does.
        capturable: whether it can be one CUDA graph; None = not asked.
        in_graph: whether it is one.
    """

    captured: Captured
    traced: TracedGraph
    holdings: ResidentBytes
    account: Account
    plain_peak: int | None
    peak_now: int | None = None
    plain: PlainOrder | None = None
    updates: StepGraph | None = None
    sizes: ChangingSizes = field(default_factory=ChangingSizes)
    known: PlannedCall | None = None
    decision: Decision | None = None
    is_provisional: bool = False
    divided: Divided | None = None
    capturable: Capturable | None = None
    in_graph: bool = False

    @property
    def graph(self) -> DFGraph:
        """Its priced graph."""
        return self.traced.graph

    def schedule(self, solution: Solution) -> Schedule:
        """The schedule of a solution, without ops that would read a parameter after its update in vain."""
        schedule = schedule_of(solution)
        return schedule if self.updates is None else without_late_reads(self.updates, schedule)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step(ABC):
    """How one kind of step is planned.

    Attributes:
        options: how to plan.
        given: a schedule to follow instead of deciding.
        whole: what a budget may be a share of.
    """

    options: Options
    given: GivenSchedule | None = None
    whole: Whole = field(default_factory=Whole)

    @abstractmethod
    def capture(self, gm: GraphModule, inputs: Sequence[object]) -> Captured:
        """Look around a captured graph: what is resident, and what plain PyTorch needs."""

    @abstractmethod
    def prepare(self, joint: Joint, captured: Captured) -> None:
        """Change a joint graph, in place, before it is traced for the first time."""

    @abstractmethod
    def trace(self, joint: Joint, captured: Captured) -> TracedGraph:
        """Read a joint graph, which may be changed in place."""

    @abstractmethod
    def price(self, joint: Joint, captured: Captured, fusing: Fusing | None) -> PricedStep:
        """Trace a joint graph, price its ops, and count the bytes besides."""

    def may_be_divided(self, step: PricedStep) -> bool:
        """Whether ops of a step may run in pieces."""
        return self.given is None

    @abstractmethod
    def decide(self, step: PricedStep, *, throw: bool = True) -> Solution:
        """The best schedule within the budget; without ``throw``, a solution without one if none is found."""

    @abstractmethod
    def emit(self, step: PricedStep, solution: Solution, schedule: Schedule, fusion: Fusion | None) -> Halves:
        """The code that follows a schedule."""

    def traced_and_priced(
        self, trace: Callable[[], TracedGraph], fusing: Fusing | None
    ) -> tuple[TracedGraph, TracedGraph]:
        """As :func:`priced_with_chains`; a schedule that is given brings its own costs later."""
        if self.given is not None:
            traced = trace()
            return traced, traced
        return priced_with_chains(trace, self.options, fusing)

    def with_given_costs(self, traced: TracedGraph) -> TracedGraph:
        """A traced step with the costs of the schedule that is given, if one is."""
        if self.given is None:
            return traced
        return replace(traced, graph=self.given.priced(traced.graph))

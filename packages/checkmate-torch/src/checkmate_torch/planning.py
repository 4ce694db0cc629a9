"""From a traced step to a decided one: the planner behind every entry point that runs a model.

    joint graph ↦ traced ↦ priced ↦ schedule within the budget ↦ forward and backward graph

AOTAutograd traces the joint graph and asks for a partition; the plan is made there. Graphs without a backward
pass run as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import nn
from torch.fx import GraphModule, Node

from checkmate import (
    CheckmateError,
    DFGraph,
    InfeasibleBudgetError,
    NoPlanError,
    Problem,
    Schedule,
    Solution,
    UnsupportedModelError,
    keep_all_peak,
    simulate,
)
from checkmate.framework import decide, differences, in_bytes, schedule_of
from checkmate.heuristics import PlainOrder
from checkmate.report import Account, HasPlans, Kind
from checkmate.units import parse_budget
from checkmate_torch.account import Holdings, module_of, named
from checkmate_torch.costs import Workspaces, price
from checkmate_torch.device import obtainable_bytes
from checkmate_torch.distributed import Ranks, bucket_bytes, decided_together, priced_together
from checkmate_torch.eager import EagerStep, eager_step
from checkmate_torch.emit import Watch, emit
from checkmate_torch.lowering import Lowering, lowered
from checkmate_torch.options import Options
from checkmate_torch.outer_loss import returns_loss
from checkmate_torch.private import compile_joint
from checkmate_torch.snapshot import Snapshot, predicted_snapshot
from checkmate_torch.symbols import Sizes, planned_sizes, planning_for
from checkmate_torch.traced_graph import TracedGraph
from checkmate_torch.tracing import trace_joint

__all__ = [
    "Given",
    "Planner",
    "StepPlan",
    "TracingDone",
    "Viewable",
    "decide_step",
    "log_plan",
    "price_step",
    "refuse_nested",
]

_log = logging.getLogger(__name__)
_NOT_FOLLOWED = (
    "the peak of plain PyTorch could not be predicted: that of the planned graph without recomputation takes "
    "its place, also where the budget is a share",
)
_OF_INDUCTOR = ("Inductor orders and frees in its own way: the prediction is no bound; measure the peak",)


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True, eq=False)
class StepPlan:
    """The decision for one traced graph.

    Attributes:
        traced: the joint graph and its DFGraph.
        solution: the checked schedule; ``solution.peak`` is the predicted peak of the whole step in bytes.
        account: the use of each byte.
        lowering: how its graphs run; only ``"eager"`` graphs follow the schedule to the letter.
        plain_peak: predicted peak of plain PyTorch, in bytes; None = it is unknown, and that of the graph's
            base order takes its place.
    """

    traced: TracedGraph
    solution: Solution
    account: Account = field(default_factory=Account)
    lowering: Lowering = "eager"
    plain_peak: int | None = None

    @property
    def plain_bytes(self) -> int:
        """The predicted peak of plain PyTorch."""
        graph = self.solution.problem.graph
        return keep_all_peak(graph) if self.plain_peak is None else self.plain_peak

    def charged(self, kind: Kind, size: int, options: Options) -> StepPlan | None:
        """The plan with at least ``size`` bytes of a kind held throughout; None if the budget has no room.

        Args:
            kind: the use of the bytes.
            size: bytes.
            options: as planned. If their budget is a share, it grows with the peak of plain PyTorch.
        """
        fixed = dict(self.account.fixed)
        more = size - fixed.get(kind, 0)
        if more <= 0:
            return self
        problem, plain = self.solution.problem, self.plain_bytes + more
        budget = parse_budget(options.budget, plain) if options.is_share else problem.budget
        if self.solution.schedule is None or (self.solution.peak or 0) + more > budget:
            return None
        graph = replace(problem.graph, fixed_size=problem.graph.fixed_size + more)
        solution = replace(
            self.solution,
            problem=replace(problem, graph=graph, budget=budget),
            timeline=simulate(graph, self.solution.schedule),
        )
        fixed[kind] = size
        return replace(
            self,
            traced=replace(self.traced, graph=graph),
            solution=solution,
            account=replace(self.account, fixed=fixed),
            plain_peak=None if self.plain_peak is None else plain,
        )

    @property
    def modules(self) -> list[str]:
        """The part of the model that each op of the graph comes from, as far as PyTorch knows; else empty."""
        return [module_of(node) for node in self.traced.nodes]

    @property
    def remarks(self) -> tuple[str, ...]:
        """Further facts about the predicted peak."""
        unknown = _NOT_FOLLOWED if self.plain_peak is None else ()
        return (*_OF_INDUCTOR, *unknown) if self.lowering == "inductor" else unknown


class Viewable(HasPlans[StepPlan]):
    """An object with plans, which PyTorch's memory viewer can show too."""

    def memory_snapshot(self, *, plan: int = -1) -> Snapshot:
        """The predicted timeline as PyTorch's memory viewer reads it; tensors are coloured by kind.

        ``torch.cuda._memory_viz.trace_plot(compiled.memory_snapshot())`` makes a page of it.

        Args:
            plan: which of :attr:`plans`; default the last.

        Raises:
            NoPlanError: before the first call with gradients.
        """
        chosen = self._plan(plan)
        if chosen.solution.timeline is None:
            raise NoPlanError("this plan has no schedule")
        return predicted_snapshot(chosen.solution.timeline, chosen.account.kinds)


class TracingDone(CheckmateError):  # noqa: N818 - it ends a trace that worked
    """Raised to leave Dynamo once a step is traced, before anything is planned or run."""

    def __init__(self, traced: TracedGraph, account: Account, plain_peak: int | None = None) -> None:
        super().__init__("traced")
        self.traced, self.account, self.plain_peak = traced, account, plain_peak


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Given:
    """A schedule that was decided before the model is captured.

    Attributes:
        graph: the priced graph that it is for.
        schedule: valid.
        watch: called with each op right before it runs; None = nothing is called.
    """

    graph: DFGraph
    schedule: Schedule
    watch: Watch | None = None

    def priced(self, graph: DFGraph) -> DFGraph:
        """The graph of a newly traced step with the costs of the known one.

        Raises:
            UnsupportedModelError: if the schedule is of another step.
        """
        if why := differences(graph, self.graph):
            raise UnsupportedModelError(
                f"the step is not the one that was traced: {why}. Trace the model as it is now, with inputs "
                "of the shapes to train with, and solve that graph"
            )
        return replace(self.graph, fixed_size=graph.fixed_size)

    def solution(self, graph: DFGraph) -> Solution:
        """The schedule as the answer to a budget of its own peak."""
        timeline = simulate(graph, self.schedule)
        problem = Problem(
            graph=graph, budget=max(1, timeline.peak), fixed_order=timeline.schedule.keeps_base_order
        )
        return Solution.found(problem, timeline, solver="given")


@dataclass(slots=True, weakref_slot=True, eq=False)
class Planner:
    """A Dynamo backend with its settings and the plans that it has made.

    Attributes:
        options: how to plan.
        given: a schedule to follow instead of deciding.
        module: its parameters, buffers and gradients are resident too where the graph does not take them.
        only_trace: raise :class:`TracingDone` with the first graph instead of planning it.
        plans: one for each traced graph with a backward pass, in the order of tracing.
        sizes: those that the plans were made for; where sizes may change, later plans cover them too.
    """

    options: Options
    given: Given | None = None
    module: nn.Module | None = field(default=None, repr=False)
    only_trace: bool = False
    plans: list[StepPlan] = field(default_factory=list, repr=False)
    sizes: list[Sizes] = field(default_factory=list, repr=False)

    def again(self, options: Options) -> Planner:
        """A planner with other options, and no plans yet."""
        return replace(self, options=options, plans=[])

    def __call__(self, gm: GraphModule, example_inputs: Sequence[object]) -> Callable[..., object]:
        """Compile a graph that Dynamo captured."""
        loss = self.options.loss_bytes
        loss = 0 if loss is None and returns_loss(gm) else loss
        forward, backward = lowered(self.options.lowering)
        progress = self.options.planning("tracing forward and backward pass")
        shown = [node.meta.get("example_value") for node in gm.graph.find_nodes(op="placeholder")]
        with progress, planning_for(shown, self.sizes):
            plain = eager_step(gm, shown, loss=loss) if self.given is None else None
            partition = partial(self._partition, example_inputs=example_inputs, loss=loss, plain=plain)
            call = compile_joint(gm, example_inputs, partition=partition, forward=forward, backward=backward)
            self.sizes.append(planned_sizes(shown))
        return call

    def _partition(
        self,
        joint: GraphModule,
        joint_inputs: Sequence[Sequence[object]],
        *,
        num_fwd_outputs: int,
        example_inputs: Sequence[object],
        loss: int | None,
        plain: EagerStep | None,
        **_: object,
    ) -> tuple[GraphModule, GraphModule]:
        """Split a joint graph so that the saved and the recomputed tensors follow the best schedule."""
        refuse_nested(joint_inputs)
        options = self.options
        holdings = Holdings.of(self.module, example_inputs, options.fixed | {Kind.BUCKETS: bucket_bytes()})
        traced = trace_joint(
            joint,
            n_primals=len(joint_inputs[0]),
            n_forward_outputs=num_fwd_outputs,
            reserve=holdings.size,
            loss=loss,
            name=self.module.__class__.__name__ if self.module is not None else "",  # of a proxy, too
        )
        graph = named(traced, example_inputs, self.module)
        given = self.given
        priced = price_step(options, graph, traced.nodes) if given is None else given.priced(graph)
        traced = replace(traced, graph=priced)
        account = holdings.account(traced)
        plain_peak = None
        if plain is not None:
            plain_peak = holdings.size + plain.peak(Workspaces.of(priced, traced.nodes))
        if self.only_trace:
            raise TracingDone(traced, account, plain_peak)
        if given is None:
            solution = decide_step(options, priced, account, holdings.allocated(), plain_peak=plain_peak)
        else:
            solution = given.solution(priced)
        modules = emit(traced, schedule_of(solution), given.watch if given is not None else None)
        self.plans.append(
            StepPlan(
                traced=traced,
                solution=solution,
                account=account,
                lowering=options.lowering,
                plain_peak=plain_peak,
            )
        )
        log_plan(self.plans, holdings)
        return modules


def price_step(options: Options, graph: DFGraph, nodes: Sequence[Node | None]) -> DFGraph:
    """The graph with the costs and workspaces of the options' cost model, the same on all ranks.

    Args:
        options: how to plan.
        graph: without costs.
        nodes: the FX node of each op; None = it costs nothing.

    Raises:
        RankError: if the ranks that plan together have different graphs. Else as
            :func:`checkmate_torch.costs.price`.
    """
    measured = partial(
        price,
        nodes=nodes,
        cost_model=options.cost_model,
        workspaces=options.workspaces,
        on_disk=options.cache,
        on_progress=options.listener(),
    )
    return priced_together(Ranks.of(options.process_group), graph, measured)


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
        account: the uses of its bytes, for the error.
        allocated: the device of the step, and the bytes of it that are allocated there already.
        plain: PyTorch's own order, if it is not the base order.
        plain_peak: peak of plain PyTorch in bytes, of which a budget may be a share; None = that of
            ``plain``, or of the base order.
        fixed_order: whether first runs keep the base order.
        throw: False = without a schedule return a solution that says so, instead of raising.

    Raises:
        InfeasibleBudgetError: if no schedule was found; where the budget is below the bytes of parameters,
            gradients and other tensors that are no activations, it says so.
        RankError: if not all ranks that plan together ask.
    """
    device, resident = allocated
    options = in_bytes(options, device, resident, partial(obtainable_bytes, device))
    whole = plain_peak
    if whole is None:
        whole = keep_all_peak(graph) if plain is None else plain.peak(graph)
    budget = parse_budget(options.budget, whole)
    problem = Problem(graph=graph, budget=budget, time_limit=options.time_limit, fixed_order=fixed_order)

    def solve(budget: int) -> Solution:
        return decide(graph, budget, options, plain=plain, fixed_order=fixed_order, throw=throw)

    try:
        return decided_together(Ranks.of(options.process_group), problem, solve)
    except InfeasibleBudgetError as error:
        raise account.explained(error, graph, whole) from None


def refuse_nested(joint_inputs: Sequence[Sequence[object]]) -> None:
    """Raise if AOTAutograd asks about a nested region, for which it names no inputs."""
    if not joint_inputs:
        raise UnsupportedModelError(
            "a region under torch.compiler.nested_compile_region can't be planned: call it without"
        )


def log_plan(plans: Sequence[StepPlan], holdings: Holdings, of: str = "") -> None:
    """Log the latest plan with the shapes of its batch."""
    label = ", ".join(str(tuple(x.shape)) for x in holdings.batch)
    text = repr(plans[-1].solution)  # handlers may keep the record: it must not hold the plan
    _log.info("plan %d, %sfor %s: %s", len(plans), of, label, text)

"""The planner of whole steps: from Dynamo's graph of a loss to one graph that also updates the parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule

from checkmate import UnsupportedModelError
from checkmate.cost import OpProfile
from checkmate.framework import schedule_of
from checkmate.heuristics import PlainOrder
from checkmate.report import Account, Kind
from checkmate_torch.capture.attention_kernels import with_kernels_of_target
from checkmate_torch.capture.dynamo_capture import captured
from checkmate_torch.capture.recurrent_ops import with_recurrent_ops
from checkmate_torch.memory.account import Holdings, named, optimizer_bytes
from checkmate_torch.memory.plain_graph import EagerStep, eager_step
from checkmate_torch.ops.recompute_rules import is_new_statistic
from checkmate_torch.ops.storages import allocated_bytes
from checkmate_torch.optimizer.updates import ParameterUpdate, Updates
from checkmate_torch.optimizer.whole_step import WholeStep, renamed, whole_step, without_late_reads
from checkmate_torch.planning.decide import decide_step, log_plan, refuse_nested
from checkmate_torch.planning.fusing import Fuser, Plain
from checkmate_torch.planning.lowering import boxed
from checkmate_torch.planning.options import Options
from checkmate_torch.planning.step_plan import Given, StepPlan, TracingDone
from checkmate_torch.private import TangentAOTInput, compile_joint, mark_boxed, tree_map_only
from checkmate_torch.running.emit import emit_unbroken
from checkmate_torch.tracing.traced_graph import TracedGraph

__all__ = ["StepPlanner", "StepTraced", "captured_step"]


class StepTraced(TracingDone):
    """Raised as :class:`TracingDone`, with the updates, and the device and bytes that are allocated there."""

    def __init__(
        self, step: WholeStep, account: Account, plain_peak: int, allocated: tuple[torch.device, int]
    ) -> None:
        super().__init__(step.traced, account, plain_peak)
        self.step, self.allocated = step, allocated


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True, eq=False)
class StepPlanner:
    """A Dynamo backend for graphs that compute a loss: it adds the backward pass and the updates.

    Attributes:
        options: how to plan.
        updates: of the optimizer.
        module: its parameters and buffers are resident too where the graph does not take them.
        given: a schedule to follow instead of deciding.
        only_trace: raise :class:`TracingDone` instead of planning.
        plans: one for each traced graph, in the order of tracing.
    """

    options: Options
    updates: Updates
    module: nn.Module = field(repr=False)
    given: Given | None = None
    only_trace: bool = False
    plans: list[StepPlan] = field(default_factory=list, repr=False)

    def __call__(self, gm: GraphModule, example_inputs: Sequence[object]) -> Callable[..., object]:
        """Compile a graph that Dynamo captured."""
        gm = with_kernels_of_target(with_recurrent_ops(gm))
        updated: dict[int, nn.Parameter] = {}
        forward = partial(_guarded, updated=updated)
        accumulates = self.updates.accumulate > 1
        eager = eager_step(gm, example_inputs, accumulates=accumulates) if self.given is None else None
        inputs = list(example_inputs)
        fuser = Fuser(options=self.options, given=self.given)
        partition = partial(self._partition, example_inputs=inputs, updated=updated, eager=eager, fuser=fuser)
        compiled = partial(
            compile_joint, gm, example_inputs, partition=partition, forward=forward, backward=boxed
        )
        with self.options.planning("tracing forward and backward pass"):
            try:
                return fuser.planned(gm, compiled)
            finally:
                inputs.clear()  # AOTAutograd keeps the partition, which must not keep the batch

    def _partition(
        self,
        joint: GraphModule,
        joint_inputs: Sequence[Sequence[object]],
        *,
        num_fwd_outputs: int,
        example_inputs: Sequence[object],
        updated: dict[int, nn.Parameter],
        eager: EagerStep | None,
        fuser: Fuser,
        **_: object,
    ) -> tuple[GraphModule, GraphModule]:
        """Let the forward graph be the whole step; the backward graph, which never runs, is empty."""
        refuse_nested(joint_inputs)
        options = self.options
        holdings = Holdings.of(self.module, example_inputs, options.fixed)
        backward = _nothing_left(joint, num_fwd_outputs)
        bare: list[Plain] = []

        def decidable(trace: Callable[[], TracedGraph]) -> TracedGraph:
            traced, plain = fuser.traced(trace)
            bare.append(plain)
            return traced

        step = whole_step(
            joint,
            parameters={k: x for k, x in enumerate(example_inputs) if isinstance(x, nn.Parameter)},
            n_forward_outputs=num_fwd_outputs,
            updates=self.updates,
            decidable=decidable,
            profile=self._profile,
            reserve=holdings.size,
            name=type(self.module).__name__,
        )
        step = renamed(step, named(step.traced, example_inputs, self.module))
        if (given := self.given) is not None:
            step = replace(step, traced=replace(step.traced, graph=given.priced(step.traced.graph)))
        statistics = [n.meta["val"] for n in joint.graph.nodes if is_new_statistic(n)]
        holdings = holdings.with_further(Kind.BUFFERS, sum(map(allocated_bytes, statistics)))
        if step.held:
            holdings = holdings.with_further(Kind.EARLIER_GRADIENTS, step.held)
        account = holdings.account(step.traced)
        # Early updates need room for temporaries: where it is missing and PyTorch's own order fits, that
        # order is the best.
        plain = PlainOrder(order=step.plain)
        plain_peak = plain.peak(step.traced.graph)
        if eager is not None:
            plain_peak = eager.peak_beside(
                *bare[0],
                holdings.size,
                planned=plain_peak,
                update=step.workspace,
            )
        if self.only_trace:
            raise StepTraced(step, account, plain_peak, holdings.allocated())
        if given is not None:
            solution = given.solution(step.traced.graph)
        else:
            replays = step.traced.graph.fixed_size - holdings.size  # bytes that no plan can do without
            solution = decide_step(
                options,
                step.traced.graph,
                account,
                holdings.allocated(),
                plain=plain,
                plain_peak=plain_peak + replays,
                fixed_order=False,
            )
        schedule = without_late_reads(step, schedule_of(solution))
        fusion = fuser.program(step.traced, schedule, solution.problem)
        if fusion is not None:
            schedule, solution = fusion.schedule, fusion.solution(solution)
        forward = emit_unbroken(
            step.traced,
            schedule,
            given.watch if given is not None else None,
            fusion.kernels if fusion is not None else None,
        )
        updated.update(step.parameters)
        self.plans.append(
            StepPlan(
                traced=step.traced, solution=solution, account=account, fusion=fusion, plain_peak=plain_peak
            )
        )
        log_plan(self.plans, holdings, of="of a step ")
        return forward, backward

    def _profile(self, update: ParameterUpdate) -> OpProfile:
        """Seconds and workspace of an update: measured if those of the ops are."""
        options = self.options
        if self.given is not None or not (options.workspaces or options.cost_model == "profiled"):
            return update.counted()
        return update.profile()


def captured_step(
    planner: StepPlanner, loss_fn: Callable[..., object], has_aux: bool, max_plans: int
) -> Callable[..., Any]:
    """The step as Dynamo will capture it, once it is called, with the optimizer's settings of now.

    It is called with the scale of the loss, or None, and the arguments of the loss function after the model.
    It returns the loss that is differentiated, the one to show, or None where that is the same, and the rest.
    """
    size = optimizer_bytes(planner.updates.optimizer)
    planner = replace(planner, options=replace(planner.options, optimizer_bytes=size))
    model = planner.module

    def step(scale: Tensor | None, /, *args: object, **kwargs: object) -> tuple[object, object, object]:
        result: Any = loss_fn(model, *args, **kwargs)
        loss, aux = result if has_aux else (result, None)
        if not isinstance(loss, Tensor):
            return f"a {type(loss).__name__}", None, None
        aux = tree_map_only(Tensor, Tensor.detach, aux)
        # Some losses lie in a storage as large as their inputs: what is returned does not.
        if scale is None:
            return loss.clone(), None, aux
        return loss * scale, loss.detach().clone(), aux

    return captured(step, planner, max_plans=max_plans)


def _guarded(
    gm: GraphModule, example_inputs: Sequence[object], *, updated: Mapping[int, nn.Parameter]
) -> Callable[[list[object]], object]:
    """Generated code that runs only on the parameters whose updates are written into it."""
    run = boxed(gm, example_inputs)

    def call(args: list[Any]) -> object:
        for k, parameter in updated.items():
            if args[k].data_ptr() != parameter.data_ptr():
                raise UnsupportedModelError(
                    f"a parameter of shape {tuple(parameter.shape)} was replaced after the step was planned: "
                    "make an optimizer for the new one, and compile the step again"
                )
        return run(args)

    return mark_boxed(call)


def _nothing_left(joint: GraphModule, n_forward_outputs: int) -> GraphModule:
    """A backward graph that takes the tangents of a joint graph and gives no gradient."""
    output = joint.graph.output_node()
    roles = list(output.meta["desc"])[n_forward_outputs:]
    graph = Graph()
    for node in joint.graph.find_nodes(op="placeholder"):
        if isinstance(node.meta["desc"], TangentAOTInput):
            graph.placeholder(node.name).meta.update(node.meta)
    graph.output([None] * len(roles)).meta["desc"] = roles
    return GraphModule(joint, graph)

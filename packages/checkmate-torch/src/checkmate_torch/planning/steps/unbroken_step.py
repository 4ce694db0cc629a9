"""A step that is one call: forward pass, loss, backward pass and all updates are one graph.

:class:`WholeStep` is the step as a user describes it; :class:`UnbrokenStep` is how its graph is planned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

from torch import Tensor, nn
from torch.amp import GradScaler
from torch.autograd.graph import increment_version
from torch.fx import GraphModule
from torch.optim import Optimizer

from checkmate import Schedule, Solution, UnsupportedModelError
from checkmate.cost import OpProfile
from checkmate.heuristics import PlainOrder
from checkmate.report import Kind
from checkmate_torch.capture.arguments import check_step
from checkmate_torch.capture.dynamo_capture import captured as captured_whole
from checkmate_torch.distributed.wrappers import refuse_wrappers
from checkmate_torch.memory.account import ResidentBytes, named
from checkmate_torch.memory.plain_step import plain_step_of_graph
from checkmate_torch.ops.capturable import Capturable, moves_to_host
from checkmate_torch.ops.recompute_rules import is_new_statistic
from checkmate_torch.ops.storages import allocated_bytes, storage_key
from checkmate_torch.optimizer.meta_step import optimizer_bytes
from checkmate_torch.optimizer.separable import UnsupportedOptimizerError
from checkmate_torch.optimizer.updates import ParameterUpdate, Updates
from checkmate_torch.optimizer.whole_step import StepGraph, join_loss, renamed, with_updates
from checkmate_torch.planning.capturing import bytes_beside_graph, capturable_step
from checkmate_torch.planning.decide import Whole, decide_step
from checkmate_torch.planning.fusing import Fusing
from checkmate_torch.planning.options import Options
from checkmate_torch.planning.planner import Planner
from checkmate_torch.planning.step_plan import GivenSchedule
from checkmate_torch.planning.steps.stages import Captured, PricedStep, Step
from checkmate_torch.private import Boxed, Halves, Joint, below_autograd, mark_boxed, tree_map_only
from checkmate_torch.running.cuda_graph import RandomPoints, graphed, host_side, recorder_on
from checkmate_torch.running.emit import emit_unbroken
from checkmate_torch.running.fusing import Fusion
from checkmate_torch.tracing.joint_graph import trace_joint
from checkmate_torch.tracing.traced_graph import TracedGraph

__all__ = ["UnbrokenStep", "WholeStep"]

_LAUNCH_S = 10e-6
"""Seconds in which the host launches an op: where ops take less, a step is as long as its launches."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WholeStep:
    """A whole training step, as a user describes it.

    Attributes:
        model: any module that Dynamo can capture in one graph.
        loss_fn: called with the model first.
        optimizer: of parameters of the model, or of the loss function.
        has_aux: as in :class:`~checkmate_torch.planning.options.StepSettings`, and likewise below.
        max_norm: of all gradients together.
        accumulate: the number of calls before an update.
        scaler: of the loss.

    Raises:
        TypeError: unless these are a module, a function of the model, and an optimizer.
        UnsupportedModelError: if a wrapper of the model communicates between ranks.
        UnsupportedOptimizerError: if the optimizer holds parameters that are not the model's.
    """

    model: nn.Module
    loss_fn: Callable[..., object]
    optimizer: Optimizer
    has_aux: bool = False
    max_norm: float | None = None
    accumulate: int = 1
    scaler: GradScaler | None = None

    def __post_init__(self) -> None:
        """Check that they belong together; nothing is compiled."""
        check_step(self.model, self.loss_fn, self.optimizer)
        refuse_wrappers(self.model)
        known = {id(p) for module in self.modules for p in module.parameters()}
        for k, group in enumerate(self.optimizer.param_groups):
            for n, parameter in enumerate(group["params"]):
                if id(parameter) not in known:
                    raise UnsupportedOptimizerError(
                        f"parameter {n} of group {k} of the optimizer, of shape {tuple(parameter.shape)}, is "
                        "none of the model's: make the optimizer with the parameters of this model"
                    )

    @property
    def modules(self) -> list[nn.Module]:
        """The model, and the loss function if it is a module."""
        return [self.model, *([self.loss_fn] if isinstance(self.loss_fn, nn.Module) else [])]

    def updates(self) -> Updates:
        """The optimizer, split into one update for each parameter.

        Raises:
            UnsupportedOptimizerError: if it can't be split.
            ValueError: if ``accumulate`` is below 1.
        """
        return Updates(
            optimizer=self.optimizer,
            max_norm=self.max_norm,
            accumulate=self.accumulate,
            scaler=self.scaler,
        )

    def captured(self, planner: Planner, max_plans: int) -> Callable[..., Any]:
        """The step as Dynamo will capture it, once it is called.

        It is called with the scale of the loss, or None, and the arguments of the loss function after the
        model. It returns the loss that is differentiated, the one to show, or None where that is the same,
        and the rest.
        """
        model, loss_fn, has_aux = self.model, self.loss_fn, self.has_aux

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

        return captured_whole(step, planner, max_plans=max_plans, read_masks=planner.options.read_masks)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnbrokenStep(Step):
    """A step in one graph, in which a gradient lives from the op that makes it to the update that reads it.

    Attributes:
        module: its parameters and buffers are resident too where the graph does not take them.
        updates: of the optimizer.
    """

    module: nn.Module
    updates: Updates

    @classmethod
    def of(
        cls,
        step: WholeStep,
        updates: Updates,
        options: Options,
        *,
        given: GivenSchedule | None = None,
        whole: Whole | None = None,
    ) -> Self:
        """How to plan a whole step, with the bytes that its optimizer keeps now."""
        options = replace(options, optimizer_bytes=optimizer_bytes(updates.optimizer))
        return cls(module=step.model, updates=updates, options=options, given=given, whole=whole or Whole())

    def capture(self, gm: GraphModule, inputs: Sequence[object]) -> Captured:
        """Find out what is resident, and what plain PyTorch needs."""
        accumulates = self.updates.accumulate > 1
        return Captured(
            inputs=inputs,
            holdings=ResidentBytes.of(self.module, inputs, self.options.fixed),
            plain=plain_step_of_graph(gm, inputs, accumulates=accumulates) if self.given is None else None,
            on_host=moves_to_host(gm),
        )

    def prepare(self, joint: Joint, captured: Captured) -> None:
        """Let the loss be an op like any other, with a gradient that is made in the graph."""
        join_loss(joint, _parameters(captured), self.updates)

    def trace(self, joint: Joint, captured: Captured) -> TracedGraph:
        """Read the joint graph as one without a boundary."""
        name = type(self.module).__name__
        return trace_joint(joint, unbroken=True, reserve=captured.holdings.size, name=name)

    def price(self, joint: Joint, captured: Captured, fusing: Fusing | None) -> PricedStep:
        """Trace the joint graph, and append the updates.

        Early updates need room for temporaries: where it is missing and PyTorch's own order fits, that order
        is the best.
        """
        parameters = _parameters(captured)
        traced, bare = self.traced_and_priced(partial(self.trace, joint, captured), fusing)
        statistics = [
            n.meta["val"]
            for n in traced.joint.graph.nodes
            if is_new_statistic(n) and n.args[0] not in traced.in_place
        ]
        step = with_updates(traced, parameters, self.updates, self._profile)
        step = renamed(step, named(step.traced, captured.inputs, self.module))
        step = replace(step, traced=self.with_given_costs(step.traced))
        holdings = captured.holdings.with_further(Kind.BUFFERS, sum(map(allocated_bytes, statistics)))
        if step.held:
            holdings = holdings.with_further(Kind.EARLIER_GRADIENTS, step.held)
        plain = PlainOrder(order=step.plain)
        plain_peak = plain.peak(step.traced.graph)
        if captured.plain is not None:
            plain_peak = captured.plain.peak_beside(
                bare.graph, bare.nodes, holdings.size, planned=plain_peak, update=step.workspace
            )
        capturable, in_graph = self._in_graph(step, captured)
        if in_graph:
            size = bytes_beside_graph(step.traced, holdings.batch)
            graph = replace(step.traced.graph, fixed_size=step.traced.graph.fixed_size + size)
            step = replace(step, traced=replace(step.traced, graph=graph))
            holdings = holdings.with_further(Kind.CUDA_GRAPH, size)
        return PricedStep(
            captured=captured,
            traced=step.traced,
            holdings=holdings,
            account=holdings.account(step.traced),
            plain_peak=plain_peak,
            plain=plain,
            updates=step,
            capturable=capturable,
            in_graph=in_graph,
        )

    def decide(self, step: PricedStep, *, throw: bool = True) -> Solution:
        """The best schedule within the budget; the order of the ops is free."""
        if self.given is not None:
            return self.given.solution(step.graph)
        return decide_step(
            self.options,
            step.graph,
            step.account,
            step.holdings.allocated(),
            plain=step.plain,
            plain_peak=self.whole.grown(step.plain_peak or 0),
            fixed_order=False,
            throw=throw,
        )

    def emit(self, step: PricedStep, solution: Solution, schedule: Schedule, fusion: Fusion | None) -> Halves:
        """The forward graph is the whole step; the backward graph never runs, and is empty."""
        if step.updates is None:
            raise ValueError("a whole step has updates")
        watch = None if self.given is None else self.given.watch
        kernels = None if fusion is None else fusion.kernels
        parameters = step.updates.parameters
        points = RandomPoints(recorder_on(self.updates.device)) if step.in_graph else None
        capture = None if points is None else self._captured(step, points)  # nothing here may hold the batch
        updates = self.updates

        def around(run: Boxed) -> Boxed:
            run = below_autograd(run)
            return _guarded(run if capture is None else capture(run), parameters, updates)

        return Halves(
            forward=emit_unbroken(step.traced, schedule, watch, kernels, points), around_forward=around
        )

    def _in_graph(self, step: StepGraph, captured: Captured) -> tuple[Capturable, bool]:
        """Whether the step can be one CUDA graph, and whether it is one."""
        choice, graph = self.options.cuda_graph, step.traced.graph
        capturable = capturable_step(step.traced, captured.on_host, self.updates)
        if choice is True and not capturable:
            raise UnsupportedModelError(f"{capturable}: change that, or say cuda_graph=False")
        seconds = sum(op.cost for op in graph.ops)
        launches = graph.cost_unit == "s" and seconds < graph.n_ops * _LAUNCH_S
        return capturable, bool(capturable) and (choice is True or (choice == "auto" and launches))

    def _captured(self, step: PricedStep, points: RandomPoints) -> Callable[[Boxed], Boxed]:
        """How to capture the generated code of a step."""
        owned, results = step.holdings.owned, enumerate(step.traced.returned)
        inputs = [(k, x) for k, x in enumerate(step.captured.inputs) if isinstance(x, Tensor)]
        optimizer = self.updates.optimizer
        return partial(
            graphed,
            points=points,
            static=frozenset(k for k, x in inputs if isinstance(x, nn.Parameter) or storage_key(x) in owned),
            copied=frozenset(k for k, node in results if node in step.traced.new_values),
            reads=lambda: host_side([optimizer.param_groups, optimizer.state]),
        )

    def _profile(self, update: ParameterUpdate) -> OpProfile:
        """Seconds and workspace of an update: measured if those of the ops are."""
        options = self.options
        if self.given is not None or not (options.workspaces or options.cost_model == "profiled"):
            return update.counted()
        return update.profile()


def _parameters(captured: Captured) -> dict[int, nn.Parameter]:
    return {k: x for k, x in enumerate(captured.inputs) if isinstance(x, nn.Parameter)}


def _guarded(run: Boxed, updated: Mapping[int, nn.Parameter], updates: Updates) -> Boxed:
    """Generated code that runs only on the parameters whose updates are written into it.

    Below autograd its updates raise no versions, so that is done here.
    """

    def call(args: list[Any]) -> object:
        for k, parameter in updated.items():
            if args[k] is not parameter and args[k].data_ptr() != parameter.data_ptr():
                raise UnsupportedModelError(
                    f"a parameter of shape {tuple(parameter.shape)} was replaced after the step was planned: "
                    "make an optimizer for the new one, and compile the step again"
                )
        try:
            return run(args)
        finally:
            if not updates.are_last:
                increment_version(updates.written(updated.values()))

    return mark_boxed(call)

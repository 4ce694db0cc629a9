"""A whole training step within a byte budget: :func:`compile_step`, and :func:`trace_step` for its graph.

Forward pass, loss, backward pass and the update of every parameter are one graph with one schedule. A
gradient lives from the op that makes it to the update that reads it, not to the end of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node
from torch.optim import Optimizer

from checkmate import Budget, DFGraph, UnsupportedModelError
from checkmate.framework import Settings, TracedStep, TracingSettings, schedule_of
from checkmate.heuristics import PlainOrder
from checkmate.report import Account
from checkmate_torch.account import Holdings, named, optimizer_bytes
from checkmate_torch.capture import captured
from checkmate_torch.distributed import GroupChoice, refuse_wrappers
from checkmate_torch.lowering import boxed
from checkmate_torch.options import Options
from checkmate_torch.planning import (
    Given,
    StepPlan,
    TracingDone,
    Viewable,
    decide_step,
    log_plan,
    price_step,
    refuse_nested,
)
from checkmate_torch.private import TangentAOTInput, compile_joint, mark_boxed, tree_map_only
from checkmate_torch.safety import is_new_statistic
from checkmate_torch.separable import UnsupportedOptimizerError
from checkmate_torch.storages import allocated_bytes
from checkmate_torch.updates import Updates, settings_of
from checkmate_torch.whole import WholeStep, emit_step, renamed, whole_step

__all__ = ["CompiledStep", "TracedTraining", "compile_step", "trace_step"]


def compile_step(
    model: nn.Module,
    loss_fn: Callable[..., object],
    optimizer: Optimizer,
    budget: Budget,
    *,
    has_aux: bool = False,
    max_norm: float | None = None,
    max_plans: int = 8,
    process_group: GroupChoice = "all",
    **settings: Unpack[Settings],
) -> CompiledStep:
    """Make a whole training step that stays within a byte budget.

    ``step(x, y)`` does what these lines do, with the same bits, lower peak, and least extra time::

        optimizer.zero_grad()
        loss = loss_fn(model, x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)  # if max_norm is given
        optimizer.step()

    The budget bounds all that the step holds on the device at once: parameters, buffers, the batch,
    activations, gradients, optimizer state and the temporaries of each op. Nothing is traced before the first
    call, which then takes some seconds.

    Args:
        model: any module that Dynamo can capture in one graph.
        loss_fn: called as ``loss_fn(model, …)`` with the arguments of the step; returns a scalar tensor.
        optimizer: any that treats each parameter alone, PyTorch's or another, as a trial on small tensors
            shows (:mod:`checkmate_torch.separable`). State, groups, schedulers and hooks work as ever. What
            it does not hold is not trained, nor are gradients computed for it.
        budget: bytes (``8 * 2**30``, ``"8GiB"``), or a share of the peak of the same step without
            recomputation and with all updates at the end (``"60%"``, ``0.6``), or ``"auto"``.
        has_aux: True = ``loss_fn`` returns ``(loss, aux)``, and so does the step. Tensors in ``aux`` come
            back detached, and are charged to the end of the step.
        max_norm: clip the gradients, all together, to this norm. No update can then start before the last
            gradient is there, so that all of them are held at once.
        max_plans: as for :func:`~checkmate_torch.compile`.
        process_group: as for :func:`~checkmate_torch.compile`. Gradients are not averaged over ranks: a DDP
            module is refused.
        **settings: :class:`~checkmate.framework.Settings`.

    Raises:
        BudgetError: if the budget, or another number of bytes, can't be read.
        UnsupportedOptimizerError: if the optimizer can't update one parameter at a time, or holds parameters
            that are not the model's.
        TypeError: if what is passed for a cost model can't be one; if the loss function is one of PyTorch's,
            which take no model.
        CostError: at the first call, if the cost model can't price the step.
        InfeasibleBudgetError: at the first call, if no schedule within the budget was found.
        UnsupportedModelError: at the first call, if the step can't be captured or planned.

    >>> model = nn.Linear(8, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> step = compile_step(model, lambda model, x: model(x).square().mean(), optimizer, "100%")
    >>> losses = [step(torch.ones(4, 8)) for _ in range(3)]
    >>> bool(losses[0] > losses[1] > losses[2])
    True
    """
    home = loss_fn if hasattr(loss_fn, "__name__") else type(loss_fn)
    if home.__module__ in ("torch.nn.functional", "torch.nn.modules.loss"):
        raise TypeError(
            f"loss_fn is PyTorch's {home.__name__}, which is not called with the model: "
            "write loss_fn=lambda model, x, y: loss(model(x), y)"
        )
    options = Options.parse(budget=budget, process_group=process_group, **settings)
    return CompiledStep(
        model, loss_fn, Updates(optimizer=optimizer, max_norm=max_norm), options, has_aux, max_plans
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TracedTraining(TracedStep):
    """A whole training step that was traced and not run; made by :func:`trace_step`.

    Attributes:
        step: PyTorch's graph of the step and its relation to ``graph``.
        compiled: makes a step that follows a schedule, as the executor needs it.
    """

    step: WholeStep
    compiled: Callable[[Given], CompiledStep]


def trace_step(
    model: nn.Module,
    loss_fn: Callable[..., object],
    optimizer: Optimizer,
    example_inputs: tuple[object, ...],
    *,
    has_aux: bool = False,
    max_norm: float | None = None,
    **settings: Unpack[TracingSettings],
) -> TracedTraining:
    """Trace the whole training step that :func:`compile_step` would plan, without running it.

    Args:
        model: as in :func:`compile_step`, and likewise below; with real parameters.
        loss_fn: is not called with real tensors.
        optimizer: is not stepped.
        example_inputs: the arguments of the loss function after the model.
        has_aux: whether ``loss_fn`` returns more than the loss.
        max_norm: of all gradients together.
        **settings: :class:`~checkmate.framework.TracingSettings`. Each distinct update is timed on a copy of
            a parameter.

    Raises:
        UnsupportedModelError, UnsupportedOptimizerError, CostError, TypeError: as :func:`compile_step`.

    >>> model = nn.Linear(8, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> traced = trace_step(model, lambda model, x: model(x).square().mean(), optimizer, (torch.ones(4, 8),))
    >>> [op.name for op in traced.graph.ops][-2:]
    ['update of weight', 'update of bias']
    """
    refuse_wrappers(model)
    _check_owned(optimizer, model, loss_fn)
    updates = Updates(optimizer=optimizer, max_norm=max_norm)
    options = Options.parse(**settings)
    planner = _StepPlanner(options=options, updates=updates, module=model, only_trace=True)

    def compiled(given: Given) -> CompiledStep:
        return CompiledStep(model, loss_fn, updates, options, has_aux, given=given)

    try:
        with torch.enable_grad():
            _captured(planner, loss_fn, has_aux, 1)(*example_inputs)
    except _StepTraced as done:
        return TracedTraining(
            graph=done.traced.graph, account=done.account, step=done.step, compiled=compiled
        )
    raise UnsupportedModelError(
        "the loss depends on no parameter that requires a gradient: there is nothing to train"
    )


class _StepTraced(TracingDone):
    """Raised as :class:`TracingDone`, with the updates."""

    def __init__(self, step: WholeStep, account: Account) -> None:
        super().__init__(step.traced, account)
        self.step = step


class CompiledStep(Viewable):
    """A training step that follows a schedule; made by :func:`compile_step`.

    Attributes:
        model: the model, as it was passed.
        optimizer: the optimizer, as it was passed.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[..., object],
        updates: Updates,
        options: Options,
        has_aux: bool,
        max_plans: int = 8,
        *,
        given: Given | None = None,
    ) -> None:
        """Check that they belong together; nothing is compiled before the first call."""
        refuse_wrappers(model)
        _check_owned(updates.optimizer, model, loss_fn)
        self.model = model
        self.optimizer = updates.optimizer
        self._planner = _StepPlanner(options=options, updates=updates, module=model, given=given)
        self._has_aux, self._max_plans = has_aux, max_plans
        self._loss_fn = loss_fn
        self._settings: Hashable = None
        self._run: Callable[..., Any]

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Train one step; plan first if inputs of this kind are new, or the optimizer has other settings.

        Args:
            *args: of the loss function, after the model.
            **kwargs: of the loss function.

        Returns:
            the loss before the update, detached; with ``has_aux``, ``(loss, aux)``.
        """
        settings = settings_of(self.optimizer)
        if settings != self._settings:
            if self._settings is not None:
                checked = replace(self._planner.updates, overwrites=None)
                self._planner = replace(self._planner, updates=checked)
            self._settings = settings
            self._run = _captured(self._planner, self._loss_fn, self._has_aux, self._max_plans)
        self.optimizer.zero_grad(set_to_none=True)
        with torch.enable_grad():
            loss, aux = self._run(*args, **kwargs)
        if not isinstance(loss, Tensor):
            raise UnsupportedModelError(
                f"loss_fn must return one scalar tensor, but it returned {loss}; say has_aux=True if it "
                "returns (loss, anything else)"
            )
        if not loss.requires_grad:
            raise UnsupportedModelError(
                "the loss depends on no parameter that requires a gradient: there is nothing to train"
            )
        self.optimizer.step()  # no gradient is left: for its hooks, and for schedulers that count the steps
        return (loss.detach(), aux) if self._has_aux else loss.detach()

    @property
    def plans(self) -> tuple[StepPlan, ...]:
        """The plans so far: one for each kind of inputs that was trained with."""
        return tuple(self._planner.plans)


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True, eq=False)
class _StepPlanner:
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
        updated: dict[int, nn.Parameter] = {}
        partition = partial(self._partition, example_inputs=example_inputs, updated=updated)
        forward = partial(_guarded, updated=updated)
        with self.options.planning("tracing forward and backward pass"):
            return compile_joint(gm, example_inputs, partition=partition, forward=forward, backward=boxed)

    def _partition(
        self,
        joint: GraphModule,
        joint_inputs: Sequence[Sequence[object]],
        *,
        num_fwd_outputs: int,
        example_inputs: Sequence[object],
        updated: dict[int, nn.Parameter],
        **_: object,
    ) -> tuple[GraphModule, GraphModule]:
        """Let the forward graph be the whole step; the backward graph, which never runs, is empty."""
        refuse_nested(joint_inputs)
        options = self.options
        holdings = Holdings.of(self.module, example_inputs, options.fixed)
        backward = _nothing_left(joint, num_fwd_outputs)
        step = whole_step(
            joint,
            parameters={k: x for k, x in enumerate(example_inputs) if isinstance(x, nn.Parameter)},
            n_forward_outputs=num_fwd_outputs,
            updates=self.updates,
            price=partial(price_step, options) if self.given is None else _unpriced,
            reserve=holdings.size,
            name=type(self.module).__name__,
        )
        step = renamed(step, named(step.traced, example_inputs, self.module))
        if (given := self.given) is not None:
            step = replace(step, traced=replace(step.traced, graph=given.priced(step.traced.graph)))
        statistics = [n.meta["val"] for n in joint.graph.nodes if is_new_statistic(n)]
        holdings = holdings.with_buffers(sum(map(allocated_bytes, statistics)))
        account = holdings.account(step.traced)
        if self.only_trace:
            raise _StepTraced(step, account)
        # Early updates need room for temporaries: where it is missing and PyTorch's own order fits, that
        # order is the best.
        plain = PlainOrder(order=step.plain)
        if given is not None:
            solution = given.solution(step.traced.graph)
        else:
            solution = decide_step(
                options, step.traced.graph, account, holdings.allocated(), plain=plain, fixed_order=False
            )
        forward = emit_step(step, schedule_of(solution), given.watch if given is not None else None)
        updated.update(step.parameters)
        plain_peak = plain.peak(step.traced.graph)
        self.plans.append(
            StepPlan(traced=step.traced, solution=solution, account=account, plain_peak=plain_peak)
        )
        log_plan(self.plans, holdings, of="of a step ")
        return forward, backward


def _unpriced(graph: DFGraph, _nodes: Sequence[Node | None]) -> DFGraph:
    """The graph as it is: a given schedule brings the costs of its own."""
    return graph


def _captured(
    planner: _StepPlanner, loss_fn: Callable[..., object], has_aux: bool, max_plans: int
) -> Callable[..., Any]:
    """The step as Dynamo will capture it, once it is called, with the optimizer's settings of now."""
    size = optimizer_bytes(planner.updates.optimizer)
    planner = replace(planner, options=replace(planner.options, optimizer_bytes=size))
    model = planner.module

    def step(*args: object, **kwargs: object) -> tuple[object, object]:
        result: Any = loss_fn(model, *args, **kwargs)
        loss, aux = result if has_aux else (result, None)
        if not isinstance(loss, Tensor):
            return f"a {type(loss).__name__}", None
        # Some losses lie in a storage as large as their inputs: what is returned does not.
        return loss.clone(), tree_map_only(Tensor, Tensor.detach, aux)

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


def _check_owned(optimizer: Optimizer, model: nn.Module, loss_fn: object) -> None:
    """Raise unless the optimizer trains this model, and nothing else."""
    modules = [model, *([loss_fn] if isinstance(loss_fn, nn.Module) else [])]
    known = {id(p) for module in modules for p in module.parameters()}
    for k, group in enumerate(optimizer.param_groups):
        for n, parameter in enumerate(group["params"]):
            if id(parameter) not in known:
                raise UnsupportedOptimizerError(
                    f"parameter {n} of group {k} of the optimizer, of shape {tuple(parameter.shape)}, is "
                    "none of the model's: make the optimizer with the parameters of this model"
                )

"""Planning ahead: a training step traced on fake tensors, which have shapes and no memory, and not run.

    trace: (model, example inputs, loss) ↦ graph        plan: the same and a budget ↦ schedule

The model is neither allocated nor run. The profiled cost model runs one op at a time on made-up inputs; the
roofline and FLOPs run nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Unpack, overload

import torch
from torch import Tensor, nn

from checkmate import Budget, Solution, UnsupportedModelError, keep_all_peak
from checkmate.framework import TracedStep
from checkmate.report import Kind
from checkmate_torch.api.compile import CompiledModule
from checkmate_torch.api.plan_sharded import Shard, checked_ranks, sharded_step
from checkmate_torch.capture.arguments import Loss, check_loss, check_module
from checkmate_torch.capture.dynamo_capture import captured_model, stopped
from checkmate_torch.capture.fake_twins import arguments_of, on_fakes
from checkmate_torch.costs.meter import resident_bytes
from checkmate_torch.memory.plain_step import PlainStep, plain_step_of_code
from checkmate_torch.ops.capturable import Capturable, obstacles_in
from checkmate_torch.ops.device import Target, for_target
from checkmate_torch.planning.decide import budget_bytes
from checkmate_torch.planning.dividing import decide_in_pieces
from checkmate_torch.planning.options import ModelSettings, Options, TracingModelSettings
from checkmate_torch.planning.planner import Tracer
from checkmate_torch.planning.sharded.decide import ShardedPlan
from checkmate_torch.planning.steps.split_step import SplitStep
from checkmate_torch.planning.steps.stages import PricedStep
from checkmate_torch.private import FakeTensor, tree_leaves
from checkmate_torch.tracing.traced_graph import TracedGraph

__all__ = ["TracedModel", "WithLoss", "allocated_for", "options_for", "plan", "trace"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TracedModel(TracedStep):
    """A training step that was traced and not run.

    Attributes:
        kind: how the step is planned.
        priced: the step, with PyTorch's joint graph.
        model: the model, as it was passed.
        loss: from the model's output to a scalar; None = it was not traced.
        plain_peak: predicted peak of plain PyTorch, in bytes: of the model's own code, or where that can't be
            followed, of the captured code. None = it is unknown.
        plain: the step of the model's own code; None = it can't be followed, or its loss is not known.
        capturable: whether it can be captured as one CUDA graph on its device.
    """

    kind: SplitStep
    priced: PricedStep
    model: nn.Module
    loss: Loss | None
    plain_peak: int | None
    plain: PlainStep | None
    capturable: Capturable

    @property
    def traced(self) -> TracedGraph:
        """PyTorch's joint graph and its relation to ``graph``."""
        return self.priced.traced

    @property
    def options(self) -> Options:
        """How it was traced."""
        return self.kind.options


def trace(
    model: nn.Module,
    example_inputs: object,
    *,
    loss: Loss | None = None,
    device: str | torch.device | None = None,
    **settings: Unpack[TracingModelSettings],
) -> TracedModel:
    """Trace one training step of a model without running it, and without memory for it.

    Args:
        model: the model, left unchanged. Its parameters may be real, fake, or on the device ``meta``, which
            then represents the CPU: a model of any size fits.
        example_inputs: a tensor, a tuple or list of positional arguments, or a mapping of keyword arguments;
            real, fake or on ``meta``. Only shapes and dtypes matter.
        loss: from the model's output to a scalar, traced with the model and exact. Without it the loss is one
            op that reads the outputs and makes their gradients, charged as the setting ``loss_bytes`` says; a
            model that returns its loss needs none.
        device: the device to trace for, wherever the model is; default the model's. ``"cuda:H100-80GB"``
            names a device of the table :data:`checkmate.cost.DEVICES`, which this machine need not have:
            costs then come from the device's roofline by default, and bytes are rounded as CUDA's allocator
            does. Without a GPU, CPU tensors represent the device's tensors.
        **settings: :class:`~checkmate_torch.planning.options.TracingModelSettings`. The default of
            ``workspaces`` is None here, and ``cost_model`` may name a device that this machine lacks.

    Raises:
        UnsupportedModelError: if the model can't be captured, or nothing in it needs a gradient.
        CostError: if the cost model can't price the step, or there is no such device.

    >>> with torch.device("meta"):
    ...     model = nn.Sequential(nn.Linear(2**14, 2**14), nn.ReLU(), nn.Linear(2**14, 1))
    >>> traced = trace(model, torch.empty(2**12, 2**14, device="meta"), cost_model="flops")
    >>> traced.graph.cost_unit, traced.graph.base_size > 2**30
    ('flop', True)
    """
    return _traced(model, example_inputs, loss, device, settings)


@overload
def plan(
    model: nn.Module,
    example_inputs: object,
    budget: Budget,
    *,
    loss: Loss | None = None,
    device: str | torch.device | None = None,
    throw: bool = True,
    shard: None = None,
    world_size: None = None,
    **settings: Unpack[ModelSettings],
) -> Solution: ...
@overload
def plan(
    model: nn.Module,
    example_inputs: object,
    budget: Budget,
    *,
    loss: Loss | None = None,
    device: str | torch.device | None = None,
    shard: Shard,
    world_size: int,
    **settings: Unpack[ModelSettings],
) -> ShardedPlan: ...
def plan(
    model: nn.Module,
    example_inputs: object,
    budget: Budget,
    *,
    loss: Loss | None = None,
    device: str | torch.device | None = None,
    throw: bool = True,
    shard: Shard | None = None,
    world_size: int | None = None,
    **settings: Unpack[ModelSettings],
) -> Solution | ShardedPlan:
    """Find out what a budget would cost, without running the model: :func:`trace`, then ``checkmate.solve``.

    Args:
        model: as in :func:`trace`.
        example_inputs: as in :func:`trace`.
        budget: as in :func:`compile`. ``"auto"`` counts the parts of the model and the inputs that are on the
            model's device already, and the memory that the device has left now; for a device of the table it
            is the memory that tensors can have there.
        loss: as in :func:`trace`.
        device: as in :func:`trace`.
        throw: False = if no schedule is found, return a solution without one instead of raising.
        shard: applies ``fully_shard`` to a model, without ``mesh=``: to its blocks, then to the model. It is
            called with a twin on fake tensors. The budget then is that of each rank, and of ``optimizer``,
            which has the parameters of ``model``, the state of a rank's shards is counted.
        world_size: the number of ranks, none of which is needed; as :func:`enable` counts for a model that is
            sharded already.
        **settings: :class:`~checkmate_torch.planning.options.ModelSettings`; the default of ``workspaces`` is
            None here. Without workspaces the peak may be too low, by the workspace of the largest op.

    Returns:
        The solution; with ``shard``, the plan of a rank, with bytes by kind and the schedules of all blocks.

    Raises:
        BudgetError: if the budget can't be read.
        InfeasibleBudgetError: if no schedule was found; says which budget would do.
        UnsupportedModelError, CostError: as :func:`trace`.
    """
    given: dict[str, Any] = {"budget": budget, **settings}
    if (ranks := checked_ranks(shard, world_size)) is not None:
        step = sharded_step(model, example_inputs, *ranks, loss=loss, device=device, settings=given)
        with step as search:
            return search.planned((torch.device("cpu"), 0))
    traced = _traced(model, example_inputs, loss, device, given)
    options = traced.options
    plain = keep_all_peak(traced.graph) if traced.plain_peak is None else traced.plain_peak
    room = budget_bytes(options, allocated_for(model, example_inputs), plain)
    kind = replace(traced.kind, options=replace(options, budget=room))
    with for_target(Target.parse(device)):
        return decide_in_pieces(kind, replace(traced.priced, peak_now=plain), throw=throw)[1]


def options_for(target: Target | None, **settings: Any) -> Options:
    """The options for tracing for a device.

    By default, measure only what the cost model needs, and plan without other ranks.
    """
    settings = {"workspaces": None, "process_group": "alone", **settings}
    if target is not None:
        settings = target.settings(settings)
    return Options.parse(**settings)


def _traced(
    model: nn.Module,
    example_inputs: object,
    loss: Loss | None,
    device: str | torch.device | None,
    settings: Mapping[str, Any],
) -> TracedModel:
    target = Target.parse(device)
    with for_target(target):
        options = options_for(target, **settings)
        check_module(model)
        check_loss(loss)
        if isinstance(model, CompiledModule):
            model = model.original
        plain: PlainStep | None = None
        with suppress(UnsupportedModelError):
            plain = plain_step_of_code(model, example_inputs, loss)
        mode, twin, args, kwargs = on_fakes(model, example_inputs, None if target is None else target.device)
        whole = twin if loss is None else WithLoss(twin, loss)
        kind = SplitStep(options=options, module=twin, asks_host=True)
        run = captured_model(Tracer(step=kind))
        with mode, torch.enable_grad():
            done: PricedStep | None = stopped(run, whole, *args, **kwargs)
        if done is not None:
            on_host = done.captured.on_host
            able = Capturable(obstacles=(*obstacles_in(done.traced.joint), *on_host))
    if done is None:
        raise UnsupportedModelError(
            "no parameter and no input of the model needs a gradient, so there is no backward pass to plan: "
            "requires_grad_() says what is trained"
        )
    return TracedModel(
        graph=done.graph,
        account=done.account,
        kind=kind,
        priced=done,
        model=model,
        loss=loss,
        plain_peak=done.plain_peak if plain is None else _plain_peak(plain, done),
        plain=plain,
        capturable=able,
    )


def _plain_peak(step: PlainStep, done: PricedStep) -> int:
    """The peak of the plain step in bytes, including reserve, optimizer state and libraries."""
    besides = (Kind.RESERVE, Kind.OPTIMIZER, Kind.LIBRARIES)
    fixed = sum(done.account.fixed.get(kind, 0) for kind in besides)
    return step.peak_beside(done.graph, done.traced.nodes, fixed)


class WithLoss(nn.Module):
    """A model that returns its loss."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        """Keep both."""
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *args: object, **kwargs: object) -> Tensor:
        """The loss of the model's output."""
        return self.loss(self.model(*args, **kwargs))


def allocated_for(model: nn.Module, example_inputs: object) -> tuple[torch.device, int]:
    """The device of a model, and the bytes that it and its inputs hold there; fake tensors hold none."""
    values = [*model.parameters(), *model.buffers(), *tree_leaves(arguments_of(example_inputs))]
    tensors = [x for x in values if isinstance(x, Tensor) and not x.is_meta]
    device = next((x.device for x in tensors if x.dim()), torch.device("cpu"))
    return device, resident_bytes([x for x in tensors if not isinstance(x, FakeTensor)])

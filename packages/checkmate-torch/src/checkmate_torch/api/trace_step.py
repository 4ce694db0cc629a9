"""Trace and plan whole steps ahead of time, without running them.

    trace_step: (model, loss, optimizer, inputs) ↦ graph        plan_step: the same and a budget ↦ schedule

They are to :func:`~checkmate_torch.compile_step` what ``trace`` and ``plan`` are to ``compile``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Unpack, cast

import torch
from torch import nn
from torch.optim import Optimizer

from checkmate import Budget, Solution, UnsupportedModelError
from checkmate.framework import TracedStep
from checkmate_torch.api.trace import options_for
from checkmate_torch.capture.dynamo_capture import stopped
from checkmate_torch.capture.fake_twins import fake_like, twin_of
from checkmate_torch.ops.capturable import Capturable
from checkmate_torch.ops.device import Target, for_target
from checkmate_torch.optimizer.separable import copied, is_memoryless
from checkmate_torch.optimizer.whole_step import StepGraph
from checkmate_torch.planning.dividing import decide_in_pieces
from checkmate_torch.planning.options import (
    Options,
    PlanningStepSettings,
    TracingStepSettings,
    split_settings,
)
from checkmate_torch.planning.planner import Tracer
from checkmate_torch.planning.steps.stages import PricedStep
from checkmate_torch.planning.steps.unbroken_step import UnbrokenStep, WholeStep
from checkmate_torch.private import FakeTensorMode, fake_mode, fake_mode_of, tree_leaves, tree_map

__all__ = ["TracedTraining", "plan_step", "trace_step"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TracedTraining(TracedStep):
    """A whole training step that was traced and not run; made by :func:`trace_step`.

    Attributes:
        step: PyTorch's graph of the step and its relation to ``graph``.
        source: the step, as it was passed.
        options: how it was traced.
        capturable: whether it can be captured as one CUDA graph on its device.
    """

    step: StepGraph
    source: WholeStep
    options: Options
    capturable: Capturable


def trace_step(
    model: nn.Module,
    loss_fn: Callable[..., object],
    optimizer: Optimizer,
    example_inputs: tuple[object, ...],
    *,
    device: str | torch.device | None = None,
    **settings: Unpack[TracingStepSettings],
) -> TracedTraining:
    """Trace the whole training step that :func:`compile_step` would plan, without running it.

    Args:
        model: as in :func:`compile_step`, and likewise below. Its parameters may be real, fake, or on the
            device ``meta``, which represents the CPU then: a model of any size fits.
        loss_fn: never called with real tensors.
        optimizer: holds the model's parameters, even if they have no memory; is not stepped.
        example_inputs: the arguments of the loss function after the model; real, fake or on ``meta``.
        device: the device to trace for, as in :func:`~checkmate_torch.trace`.
        **settings: :class:`~checkmate_torch.planning.options.TracingStepSettings`. The default of
            ``workspaces`` is None here. With measured costs or workspaces each distinct update runs on
            made-up tensors, one at a time; Adam's needs six times the bytes of the parameter. Else nothing is
            run: an update costs the seconds to move its bytes, and its workspace is counted.

    Raises:
        UnsupportedModelError, UnsupportedOptimizerError, CostError, TypeError: as :func:`compile_step`.

    >>> model = nn.Linear(8, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> traced = trace_step(model, lambda model, x: model(x).square().mean(), optimizer, (torch.ones(4, 8),))
    >>> [op.name for op in traced.graph.ops if op.name.startswith("update")]
    ['update of weight', 'update of bias']
    """
    of_step, others = split_settings(settings)
    step = WholeStep(model=model, loss_fn=loss_fn, optimizer=optimizer, **of_step)
    kind, done, _ = _traced(step, example_inputs, device, others)
    if done.updates is None or done.capturable is None:
        raise RuntimeError("a whole step was traced without its updates")
    return TracedTraining(
        graph=done.graph,
        account=done.account,
        step=done.updates,
        source=step,
        options=kind.options,
        capturable=done.capturable,
    )


def plan_step(
    model: nn.Module,
    loss_fn: Callable[..., object],
    optimizer: Optimizer,
    example_inputs: tuple[object, ...],
    budget: Budget,
    *,
    device: str | torch.device | None = None,
    throw: bool = True,
    **settings: Unpack[PlanningStepSettings],
) -> Solution:
    """Find out what a budget of a whole step would cost, without running it.

    That is :func:`trace_step`, then ``checkmate.solve``. Where parameters, gradients and optimizer state take
    most of the memory, as in large language models at batch 1, the least budget is far below that of
    :func:`~checkmate_torch.plan`: no two gradients need to be held at once.

    Args:
        model: as in :func:`trace_step`, and likewise below.
        loss_fn: called with the model first.
        optimizer: its state is counted as it is after the first step.
        example_inputs: the arguments of the loss function after the model.
        budget: as in :func:`compile_step`, and as in :func:`~checkmate_torch.plan` with a ``device``.
        device: the device to plan for, as in :func:`~checkmate_torch.trace`.
        throw: False = if no schedule is found, return a solution without one instead of raising.
        **settings: :class:`~checkmate_torch.planning.options.PlanningStepSettings`; the default of
            ``workspaces`` is None here.

    Raises:
        BudgetError: if the budget can't be read.
        InfeasibleBudgetError: if no schedule was found; says which budget would do.
        UnsupportedModelError, UnsupportedOptimizerError, CostError, TypeError: as :func:`compile_step`.

    >>> with torch.device("meta"):  # 12 GiB of parameters and Adam's state, never allocated
    ...     model = nn.Sequential(*(nn.Linear(2**14, 2**14) for _ in range(4)))
    ...     x = torch.empty(1, 2**14)
    >>> adam = torch.optim.Adam(model.parameters())
    >>> def loss_fn(model, x):
    ...     return model(x).square().mean()
    >>> solution = plan_step(model, loss_fn, adam, (x,), "17GiB", cost_model="flops")
    >>> solution.peak <= solution.problem.budget, solution.overhead
    (True, 0.0)
    """
    of_step, others = split_settings(settings)
    step = WholeStep(model=model, loss_fn=loss_fn, optimizer=optimizer, **of_step)
    kind, done, target = _traced(step, example_inputs, device, {"budget": budget, **others})
    with for_target(target):
        return decide_in_pieces(kind, done, throw=throw)[1]


def _traced(
    step: WholeStep,
    example_inputs: tuple[object, ...],
    named: str | torch.device | None,
    settings: Mapping[str, Any],
) -> tuple[UnbrokenStep, PricedStep, Target | None]:
    """Trace the step; on fake tensors if the model has no memory or a device is named."""
    target = Target.parse(named)
    with for_target(target):
        options, updates = options_for(target, **settings), step.updates()
    device = None if target is None else target.device
    mode: AbstractContextManager[object] = nullcontext()
    if device is not None or any(map(is_memoryless, step.model.parameters())):
        fakes = fake_mode_of([*step.model.parameters(), *tree_leaves(example_inputs)]) or fake_mode()
        step = _twin(step, fakes, device)
        updates = replace(updates, optimizer=step.optimizer)
        example_inputs = tree_map(lambda x: fake_like(x, fakes, device), example_inputs)
        mode = fakes
    with for_target(target), mode, torch.enable_grad():
        kind = UnbrokenStep.of(step, updates, options)
        run = step.captured(Tracer(step=kind), max_plans=1)
        scale = None if step.scaler is None else torch.ones((), device=updates.device)
        done: PricedStep | None = stopped(run, scale, *example_inputs)
    if done is None:
        raise UnsupportedModelError(
            "the loss depends on no parameter that requires a gradient: there is nothing to train"
        )
    return kind, done, target


def _twin(step: WholeStep, mode: FakeTensorMode, device: torch.device | None) -> WholeStep:
    """The step with fake tensors in the place of the model's."""
    modules = nn.ModuleList(step.modules)
    twins = cast("nn.ModuleList", twin_of(modules, mode, device))
    of_twin = {id(p): q for p, q in zip(modules.parameters(), twins.parameters(), strict=True)}
    return replace(
        step,
        model=twins[0],
        loss_fn=twins[1] if len(twins) > 1 else step.loss_fn,
        optimizer=copied(step.optimizer, of_twin),
    )

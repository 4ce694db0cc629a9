"""A whole training step within a byte budget: :func:`compile_step`.

Forward pass, loss, backward pass and the update of every parameter are one graph with one schedule. A
gradient lives from the op that makes it to the update that reads it, not to the end of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from checkmate import Budget, UnsupportedModelError
from checkmate.framework import Settings
from checkmate_torch.capture.arguments import check_max_plans, check_step
from checkmate_torch.distributed.ranks import GroupChoice, refuse_wrappers
from checkmate_torch.optimizer.separable import UnsupportedOptimizerError
from checkmate_torch.optimizer.updates import Updates, settings_of
from checkmate_torch.planning.lowering import Lowering
from checkmate_torch.planning.options import Options
from checkmate_torch.planning.step_plan import Given, StepPlan, Viewable
from checkmate_torch.planning.step_planner import StepPlanner, captured_step

__all__ = ["CompiledStep", "check_owned", "compile_step"]


def compile_step(
    model: nn.Module,
    loss_fn: Callable[..., object],
    optimizer: Optimizer,
    budget: Budget,
    *,
    has_aux: bool = False,
    max_norm: float | None = None,
    accumulate: int = 1,
    scaler: GradScaler | None = None,
    max_plans: int = 8,
    process_group: GroupChoice = "all",
    lowering: Lowering = "eager",
    **settings: Unpack[Settings],
) -> CompiledStep:
    """Make a whole training step that stays within a byte budget.

    ``step(x, y)`` does what these lines do, with the same bits, lower peak, and least extra time::

        optimizer.zero_grad()
        loss = loss_fn(model, x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)  # if max_norm is given
        optimizer.step()

    With ``accumulate`` and ``scaler`` it does what the loops of PyTorch's documentation do.

    The budget bounds all that the step holds on the device at once: parameters, buffers, the batch,
    activations, gradients, optimizer state and the temporaries of each op. Nothing is traced before the first
    call, which then takes some seconds.

    Args:
        model: any module that Dynamo can capture in one graph.
        loss_fn: called as ``loss_fn(model, …)`` with the arguments of the step; returns a scalar tensor.
        optimizer: any that treats each parameter alone, PyTorch's or another, as a trial on small tensors
            shows (:mod:`checkmate_torch.optimizer.separable`). State, groups, schedulers and hooks work as
            ever. What it does not hold is not trained, nor are gradients computed for it.
        budget: bytes (``8 * 2**30``, ``"8GiB"``), or a share of the peak of the same step without
            recomputation and with all updates at the end (``"60%"``, ``0.6``), or ``"auto"``.
        has_aux: True = ``loss_fn`` returns ``(loss, aux)``, and so does the step. Tensors in ``aux`` come
            back detached, and are charged to the end of the step.
        max_norm: clip the gradients, all together, to this norm. No update can then start before the last
            gradient is there, so that all of them are held at once.
        accumulate: the number of calls that make one update, each with a micro-batch. Gradients are added up,
            as by ``loss.backward()``: divide the loss by this number for their mean. They are held between
            the calls, and charged to each call throughout, so that no update can run early.
        scaler: for float16, as ``torch.amp.GradScaler`` does it in a loop: the loss is scaled, gradients are
            unscaled, and an update with gradients that are not finite is skipped; the step calls ``update()``
            of the scaler too. No update can then start before the last gradient has been checked.
        max_plans: as for :func:`~checkmate_torch.compile`.
        process_group: as for :func:`~checkmate_torch.compile`. Gradients are not averaged over ranks: a DDP
            module is refused.
        lowering: as for :func:`~checkmate_torch.compile`. The optimizer's updates run as they are.
        **settings: :class:`~checkmate.framework.Settings`.

    Raises:
        BudgetError: if the budget, or another number of bytes, can't be read.
        UnsupportedOptimizerError: if the optimizer can't update one parameter at a time, or holds parameters
            that are not the model's.
        TypeError: if the model, the optimizer or the cost model is none, or there is no such setting; if the
            loss function can't be called, or is one of PyTorch's, which take no model.
        ValueError: if ``accumulate`` or ``max_plans`` is below 1.
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
    options = Options.parse(budget=budget, process_group=process_group, lowering=lowering, **settings)
    check_step(model, loss_fn, optimizer)
    check_max_plans(max_plans)
    updates = Updates(optimizer=optimizer, max_norm=max_norm, accumulate=accumulate, scaler=scaler)
    return CompiledStep(model, loss_fn, updates, options, has_aux, max_plans)


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
        check_owned(updates.optimizer, model, loss_fn)
        self.model = model
        self.optimizer = updates.optimizer
        self._planner = StepPlanner(options=options, updates=updates, module=model, given=given)
        self._has_aux, self._max_plans = has_aux, max_plans
        self._loss_fn = loss_fn
        self._settings: Hashable = None
        self._called = 0
        self._run: Callable[..., Any]

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Train one step; plan first if inputs of this kind are new, or the optimizer has other settings.

        Args:
            *args: of the loss function, after the model.
            **kwargs: of the loss function.

        Returns:
            the loss before the update, detached; with ``has_aux``, ``(loss, aux)``.
        """
        settings, updates = settings_of(self.optimizer), self._planner.updates
        if settings != self._settings:
            if self._settings is not None:
                updates = replace(updates, overwrites=None)
                self._planner = replace(self._planner, updates=updates)
            self._settings = settings
            self._run = captured_step(self._planner, self._loss_fn, self._has_aux, self._max_plans)
        called, self._called = self._called, 0  # after an error, the next call is the first again
        if called == 0:
            self.optimizer.zero_grad(set_to_none=True)
        with torch.enable_grad():
            loss, shown, aux = self._run(updates.scale(), *args, **kwargs)
        if not isinstance(loss, Tensor):
            raise UnsupportedModelError(
                f"loss_fn must return one scalar tensor, but it returned {loss}; say has_aux=True if it "
                "returns (loss, anything else)"
            )
        if not loss.requires_grad:
            raise UnsupportedModelError(
                "the loss depends on no parameter that requires a gradient: there is nothing to train"
            )
        self._called = (called + 1) % updates.accumulate
        if not updates.are_last:
            self.optimizer.step()  # without gradients: for its hooks, and for what it counts once a step
        elif self._called == 0:
            updates.finish()
        shown = loss.detach() if shown is None else shown
        return (shown, aux) if self._has_aux else shown

    @property
    def plans(self) -> tuple[StepPlan, ...]:
        """The plans so far: one for each kind of inputs that was trained with."""
        return tuple(self._planner.plans)


def check_owned(optimizer: Optimizer, model: nn.Module, loss_fn: object) -> None:
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

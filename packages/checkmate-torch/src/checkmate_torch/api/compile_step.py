"""A whole training step within a byte budget: :func:`compile_step`.

Forward pass, loss, backward pass and the update of every parameter are one graph with one schedule. A
gradient lives from the op that makes it to the update that reads it, not to the end of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from checkmate import Budget, UnsupportedModelError
from checkmate_torch.optimizer.updates import settings_of
from checkmate_torch.planning.decide import Whole
from checkmate_torch.planning.options import Options, TrainingStepSettings, split_settings
from checkmate_torch.planning.planner import Planner
from checkmate_torch.planning.step_plan import GivenSchedule, StepPlan, Viewable
from checkmate_torch.planning.steps.unbroken_step import UnbrokenStep, WholeStep

__all__ = ["CompiledStep", "compile_step"]


def compile_step(
    model: nn.Module,
    loss_fn: Callable[..., object],
    optimizer: Optimizer,
    budget: Budget,
    **settings: Unpack[TrainingStepSettings],
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
        model: any module that Dynamo can capture in one graph; not one in DDP.
        loss_fn: called as ``loss_fn(model, …)`` with the arguments of the step; returns a scalar tensor.
        optimizer: any optimizer that updates each parameter alone, which a trial on small tensors checks
            (:mod:`checkmate_torch.optimizer.separable`). State, groups, schedulers and hooks work as ever.
            Parameters that it does not hold are not trained, and no gradients are computed for them.
        budget: bytes (``8 * 2**30``, ``"8GiB"``), or a share of the peak of the same step without
            recomputation and with all updates at the end (``"60%"``, ``0.6``), or ``"auto"``.
        **settings: :class:`~checkmate_torch.planning.options.TrainingStepSettings`: ``has_aux``,
            ``max_norm``, ``accumulate``, ``scaler``, and how to plan.

    Raises:
        BudgetError: if the budget, or another number of bytes, can't be read.
        UnsupportedOptimizerError: if the optimizer can't update one parameter at a time, or holds parameters
            that are not the model's.
        TypeError: unless these are a model, a function of the model, and an optimizer; if a setting is
            unknown; if the loss function is one of PyTorch's, which take no model.
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
    of_step, others = split_settings(settings)
    options = Options.parse(budget=budget, **others)
    return CompiledStep(WholeStep(model=model, loss_fn=loss_fn, optimizer=optimizer, **of_step), options)


class CompiledStep(Viewable):
    """A training step that follows a schedule; made by :func:`compile_step`.

    Attributes:
        model: the model, as it was passed.
        optimizer: the optimizer, as it was passed.
    """

    def __init__(self, step: WholeStep, options: Options, given: GivenSchedule | None = None) -> None:
        """Split the optimizer; nothing is compiled before the first call."""
        self.model, self.optimizer = step.model, step.optimizer
        self._step, self._options, self._given = step, options, given
        self._updates = step.updates()
        self._plans: list[StepPlan] = []
        self._whole = Whole()
        self._settings: Hashable = None
        self._called = 0
        self._run: Callable[..., Any]

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Train one step; plan first if inputs of this kind are new, or the optimizer's settings changed.

        Args:
            *args: arguments of the loss function, after the model.
            **kwargs: keyword arguments of the loss function.

        Returns:
            the loss before the update, detached; with ``has_aux``, ``(loss, aux)``.
        """
        settings = settings_of(self.optimizer)
        if settings != self._settings:
            if self._settings is not None:
                self._updates = self._step.updates()
            self._settings = settings
            step = UnbrokenStep.of(
                self._step, self._updates, self._options, given=self._given, whole=self._whole
            )
            planner = Planner(step=step, plans=self._plans)
            self._run = self._step.captured(planner, self._options.max_plans)
        updates = self._updates
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
        return (shown, aux) if self._step.has_aux else shown

    @property
    def plans(self) -> tuple[StepPlan, ...]:
        """The plans so far: one for each kind of inputs that was trained with."""
        return tuple(self._plans)

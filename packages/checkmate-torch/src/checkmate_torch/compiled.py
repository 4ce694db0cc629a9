"""A module that trains within a byte budget: :func:`compile` and what it returns.

The compiled module is called as the original is, and ``loss.backward()`` and any optimizer work as ever. It
plans once for every new kind of inputs (shapes, dtypes, modes), when it first meets them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Unpack

import torch
from torch import nn

from checkmate import Budget
from checkmate_torch.capture import captured
from checkmate_torch.distributed import GroupChoice, inside_of
from checkmate_torch.lowering import Lowering
from checkmate_torch.options import ModelSettings, Options
from checkmate_torch.planning import Given, Planner, StepPlan, Viewable
from checkmate_torch.private import registries

__all__ = ["CompiledModule", "compile"]


def compile(
    model: nn.Module,
    budget: Budget,
    *,
    max_plans: int = 8,
    dynamic: bool | None = False,
    process_group: GroupChoice = "all",
    lowering: Lowering = "eager",
    **settings: Unpack[ModelSettings],
) -> CompiledModule:
    """Make a module train within a byte budget: same gradients, lower peak, least extra time.

    The budget bounds all bytes that a training step holds on the device at once: parameters, buffers, the
    batch, activations, gradients and the temporaries of each op, plus ``reserve``. Nothing is traced before
    the first call, which then takes some seconds.

    Args:
        model: any module that Dynamo can capture in one graph.
        budget: bytes (``8 * 2**30``, ``"8GiB"``); a share of the peak of the same step without recomputation
            (``"60%"``, ``0.6``); or ``"auto"``: the bytes that the step holds already, and nine tenths of the
            memory that the device has left when the plan is made.
        max_plans: the number of kinds of inputs (shapes, dtypes, modes) to plan for; one more raises
            :class:`~checkmate_torch.TooManyPlansError`.
        dynamic: whether sizes may change within a plan. False = every shape has its own; True = a plan holds
            for all sizes up to those that it was made for, and larger ones get another; None = the first
            shape has a plan of its own, further ones share. A declared maximum
            (``torch._dynamo.mark_dynamic(x, 0, min=2, max=64)``) is planned for at once.
        process_group: the ranks that plan together where ``torch.distributed`` runs: rank 0 of the group
            times the ops, solves, and sends the answer to the others. ``"all"`` = those that train together,
            ``"alone"`` = each rank plans for itself.
        lowering: ``"eager"``: the emitted code follows the schedule to the letter. ``"inductor"``: each of
            the two graphs is compiled by Inductor: fused kernels, but it orders and frees in its own way,
            so that the peak may depart from the prediction, either way: measure it.
        **settings: :class:`~checkmate_torch.options.ModelSettings`. Gradients that are accumulated over
            several backward passes, or set to zero instead of to None, need no ``reserve``: a call that finds
            some has a plan of its own, in which they are charged.

    Returns:
        The compiled module; it shares parameters, buffers and submodules with ``model``.

    Raises:
        BudgetError: if the budget, or another number of bytes, can't be read; if the optimizer's state can't
            be predicted; at the first call, if the free memory of the device is unknown.
        TypeError: if there is no such setting, or the cost model or the process group is none.
        CostError: at the first call, if the cost model can't price the step.
        InfeasibleBudgetError: at the first call, if no schedule within the budget was found.
        UnsupportedModelError: at the first call, if the model can't be captured or planned.
        TooManyPlansError: at the call that would need one plan too many.
        RankError: at the first call, if the ranks that plan together meet different kinds of inputs.
    """
    options = Options.parse(budget=budget, process_group=process_group, lowering=lowering, **settings)
    return CompiledModule(model, options, max_plans, dynamic)


class CompiledModule(nn.Module, Viewable):
    """A module whose forward and backward pass follow a schedule; made by :func:`compile` or :func:`bind`.

    Parameters, buffers, submodules, mode and attributes are those of the original: ``state_dict``,
    ``parameters``, ``to``, ``train``, indices and assignments act on both. A copy of it, deep or pickled, has
    a copy of the original and plans again. With its last reference all is freed: plans, compiled graphs, and
    the original unless it is held elsewhere.
    """

    _original: nn.Module
    _planner: Planner
    _max_plans: int
    _dynamic: bool | None
    _runs: dict[bool, Callable[..., object]]

    def __init__(
        self,
        model: nn.Module,
        options: Options,
        max_plans: int = 8,
        dynamic: bool | None = False,
        given: Given | None = None,
    ) -> None:
        """Wrap ``model``; nothing is compiled before the first call."""
        self.__dict__["_original"] = model
        super().__init__()
        planner = Planner(options, given, module=model)
        self.__dict__.update(registries(model))
        self.__dict__.update(_planner=planner, _max_plans=max_plans, _dynamic=dynamic, _runs={})

    @property
    def original(self) -> nn.Module:
        """The module that was compiled."""
        return self._original

    @property
    def plans(self) -> tuple[StepPlan, ...]:
        """The plans so far: one for each kind of inputs that was trained with."""
        return tuple(self._planner.plans)

    def forward(self, *args: object, **kwargs: object) -> object:
        """Run the model's forward pass; plan first if inputs of this kind are new.

        Without gradients there is nothing to plan, and what captures this call as a part of something larger
        plans for all of it: then the original runs.
        """
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return self._original(*args, **kwargs)
        return self._captured()(*args, **kwargs)

    def _captured(self) -> Callable[..., object]:
        """The model under the planner; while gradients are held, they are charged, which is another plan."""
        held = any(parameter.grad is not None for parameter in self._original.parameters())
        if held not in self._runs:
            capture = partial(
                captured, backend=self._planner, max_plans=self._max_plans, dynamic=self._dynamic
            )
            self._runs[held] = inside_of(self._original, capture)
        return self._runs[held]

    @property
    def training(self) -> bool:
        """The mode of the original."""
        return self._original.training

    @training.setter
    def training(self, mode: bool) -> None:
        self._original.training = mode

    def __setattr__(self, name: str, value: Any) -> None:
        """Set it on the original; but its class, which ``fully_shard`` extends, is its own."""
        if name == "__class__":
            object.__setattr__(self, name, value)
            return
        setattr(self._original, name, value)

    def __getattr__(self, name: str) -> Any:
        """Everything else is the original's."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._original, name)

    def __bool__(self) -> bool:
        """As the original; so a model that has no length is true, though this class has one."""
        return bool(self._original)

    def __len__(self) -> int:
        """Of a container, as ``nn.Sequential``; TypeError for other models, and likewise below."""
        return len(self._container)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._container)

    def __contains__(self, item: object) -> bool:
        return item in self._container

    def __getitem__(self, index: Any) -> Any:
        return self._container[index]

    def __setitem__(self, index: Any, value: nn.Module) -> None:
        self._container[index] = value

    def __delitem__(self, index: Any) -> None:
        del self._container[index]

    @property
    def _container(self) -> Any:
        return self._original

    def __reduce__(self) -> tuple[object, ...]:
        """Copy and pickle as the original and the settings."""
        planner = self._planner
        return type(self), (self._original, planner.options, self._max_plans, self._dynamic, planner.given)

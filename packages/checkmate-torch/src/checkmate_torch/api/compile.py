"""A module that trains within a byte budget: :func:`compile` and what it returns.

The compiled module is called as the original is, and ``loss.backward()`` and any optimizer work as ever. It
plans once for every new kind of inputs (shapes, dtypes, modes), when it first meets them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import wraps
from typing import Any, Unpack

from torch import nn

from checkmate import Budget
from checkmate_torch.capture.arguments import check_module, check_trains
from checkmate_torch.planning.options import Options, TrainingSettings
from checkmate_torch.planning.step_plan import GivenSchedule, StepPlan, Viewable
from checkmate_torch.planning.training import PlannedTraining
from checkmate_torch.private import registries

__all__ = ["CompiledModule", "compile"]


def compile(model: nn.Module, budget: Budget, **settings: Unpack[TrainingSettings]) -> CompiledModule:
    """Make a module train within a byte budget: same gradients, lower peak, least extra time.

    The budget bounds all bytes that a training step holds on the device at once: parameters, buffers, the
    batch, activations, gradients and the temporaries of each op, plus ``reserve``. Nothing is traced before
    the first call, which then takes some seconds.

    Args:
        model: any module that Dynamo can capture in one graph.
        budget: bytes (``8 * 2**30``, ``"8GiB"``); a share of the plain step's peak, without Checkmate
            (``"60%"``, ``0.6``); or ``"auto"``: the bytes that the step holds already, and nine tenths of the
            memory that the device has left when the plan is made.
        **settings: :class:`~checkmate_torch.planning.options.TrainingSettings`. Gradients that are
            accumulated over several backward passes, or set to zero instead of to None, need no ``reserve``:
            a call that finds gradients has a plan of its own, which counts them.

    Returns:
        The compiled module; it shares parameters, buffers and submodules with ``model``.

    Raises:
        BudgetError: if the budget, or another number of bytes, can't be read; if the optimizer's state can't
            be predicted; at the first call, if the free memory of the device is unknown.
        TypeError: if a setting is unknown, or its value has the wrong type.
        ValueError: if the optimizer holds no parameter of the model.
        CostError, PluginError: if there is no such cost model or solver; at the first call, if the cost model
            can't price the step.
        InfeasibleBudgetError: at the first call, if no schedule within the budget was found.
        UnsupportedModelError: at the first call, if the model can't be captured or planned.
        TooManyPlansError: with ``strict=True``, at the call that would need more than ``max_plans`` plans.
        RankError: at the first call, if the ranks that plan together meet different kinds of inputs.
    """
    check_module(model)
    options = Options.parse(budget=budget, **settings)
    check_trains(settings.get("optimizer"), model)
    return CompiledModule(model, options)


class CompiledModule(nn.Module, Viewable):
    """A module whose forward and backward pass follow a schedule; made by :func:`compile` or :func:`bind`.

    It shares parameters, buffers, submodules, mode and attributes with the original: ``state_dict``,
    ``parameters``, ``to``, ``train``, indices and assignments act on both. A deep or pickled copy has a copy
    of the original and plans again. When the last reference to it goes, plans and compiled graphs are freed,
    and the original unless it is held elsewhere.
    """

    _original: nn.Module
    _training: PlannedTraining

    def __init__(self, model: nn.Module, options: Options, given: GivenSchedule | None = None) -> None:
        """Wrap ``model``; nothing is compiled before the first call."""
        self.__dict__["_original"] = model
        super().__init__()
        planned = PlannedTraining(model, options, given)

        @wraps(model.forward)  # trainers read its signature
        def forward(*args: object, **kwargs: object) -> object:
            return planned(*args, **kwargs)

        self.__dict__.update(registries(model))
        self.__dict__.update(_training=planned, forward=forward)

    @property
    def original(self) -> nn.Module:
        """The module that was compiled."""
        return self._original

    @property
    def plans(self) -> tuple[StepPlan, ...]:
        """The plans so far: one for each kind of inputs that was trained with."""
        return self._training.plans

    @property
    def training(self) -> bool:
        """The mode of the original."""
        return self._original.training

    @training.setter
    def training(self, mode: bool) -> None:
        self._original.training = mode

    def __setattr__(self, name: str, value: Any) -> None:
        """Set it on the original; ``forward``, and ``__class__`` (for ``fully_shard``), on this module."""
        if name in ("__class__", "forward"):
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
        """The truth of the original: a model without a length is true, although this class defines one."""
        return bool(self._original)

    def __len__(self) -> int:
        """The length of a container such as ``nn.Sequential``; TypeError for other models, also below."""
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
        """Copy and pickle only the original and the settings."""
        return type(self), (self._original, self._training.options, self._training.given)

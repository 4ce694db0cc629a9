"""Train a model within a byte budget, in place: :func:`enable`, and :func:`disable` to undo it."""

from __future__ import annotations

import weakref
from functools import partial
from inspect import signature
from types import MethodType
from typing import Any, Unpack, cast

import torch
from torch import nn

from checkmate import Budget
from checkmate.framework import AUTO
from checkmate_torch.api.compile import CompiledModule
from checkmate_torch.capture.arguments import check_module, check_trains
from checkmate_torch.distributed.wrappers import inside_of
from checkmate_torch.planning.options import Options, TrainingSettings
from checkmate_torch.planning.sharded.training import ShardedTraining
from checkmate_torch.planning.training import PlannedTraining
from checkmate_torch.private import has_hooks, in_place, is_captured, is_sharded, original_of, set_in_place

__all__ = ["disable", "enable", "planned_training"]

_COPIES = "_checkmate_copies"
_enabled: weakref.WeakKeyDictionary[nn.Module, PlannedTraining] = weakref.WeakKeyDictionary()
"""Enabled models, kept after ``model.compile()`` replaced the planned call, so that we can warn."""


def enable(
    model: nn.Module, budget: Budget = AUTO, **settings: Unpack[TrainingSettings]
) -> PlannedTraining | ShardedTraining:
    """Let a model train within a byte budget, in place: same gradients, lower peak, least extra time.

    The model keeps its class, the signature of ``forward``, its methods, and what it saves; so trainers see
    the model that they expect. Calls of the model with gradients follow the plan, those of ``forward`` too;
    calls of other methods and of parts of the model don't. A deep copy is enabled too, with plans of its own;
    a model that was saved and loaded is not. Enabling a model again replaces the settings.

    Args:
        model: any module. Of a ``DistributedDataParallel`` module, the module inside is enabled.
        budget: bytes of everything that a training step holds on the device at once (``8 * 2**30``,
            ``"8GiB"``): parameters, buffers, the batch, activations, gradients, the temporaries of each op,
            and the optimizer's state; a share of the plain step's peak, without Checkmate (``"60%"``,
            ``0.6``); or ``"auto"``: the bytes that the step holds already, and nine tenths of the memory that
            the device has left when the plan is made.
        **settings: :class:`~checkmate_torch.planning.options.TrainingSettings`. Pass ``optimizer=``; else the
            optimizer is noticed at its first step, and its state counted from the next call on.

    Returns:
        The plans of the model; :func:`planned_training` returns them again.

    Raises:
        BudgetError: if the budget, or another number of bytes, can't be read; if the optimizer's state can't
            be predicted.
        CostError, PluginError: if there is no such cost model or solver.
        TypeError: unless the model is a module that is not compiled yet; if a setting is unknown.
        ValueError: if the optimizer holds no parameter of the model.

    The first call raises what the first call of a compiled module does; see :func:`compile`.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> optimizer = torch.optim.Adam(model.parameters())
    >>> training = enable(model, "100%", optimizer=optimizer, cost_model="flops")
    >>> model(torch.ones(4, 8)).square().mean().backward()
    >>> optimizer.step()
    >>> len(training.plans), type(model).__name__
    (1, 'Sequential')
    """
    options = Options.parse(budget=budget, **settings)
    model = _target(model)
    check_trains(settings.get("optimizer"), model)
    return _enable_sharded(model, options) if is_sharded(model) else _enable(model, options)


def disable(model: nn.Module) -> None:
    """Restore a model's own calls.

    Args:
        model: any model; one that is not enabled is left unchanged.

    >>> model = nn.Linear(8, 1)
    >>> training = enable(model, "8GiB")
    >>> disable(model)
    >>> planned_training(model) is None
    True
    """
    model = inside_of(model)
    _enabled.pop(model, None)
    vars(model).pop(_COPIES, None)
    _restore_forward(model)
    found = planned_training(model)
    if isinstance(found, ShardedTraining):
        found.release()
    if found is not None:
        set_in_place(model, None)


def planned_training(model: nn.Module) -> PlannedTraining | ShardedTraining | None:
    """The object that :func:`enable` returned for a model.

    Args:
        model: any model; the result is None if it is not enabled.
    """
    found = in_place(inside_of(model))
    return found if isinstance(found, PlannedTraining | ShardedTraining) else None


def _enable(model: nn.Module, options: Options) -> PlannedTraining:
    training = PlannedTraining(model, options, holds_model=False)
    set_in_place(model, training)
    vars(model)[_COPIES] = _Copies(model)
    _restore_forward(model)
    if not isinstance(model, torch.jit.ScriptModule):
        vars(model)["forward"] = _Forward(model)
    _enabled[model] = training
    return training


def _enable_sharded(model: nn.Module, options: Options) -> ShardedTraining:
    disable(model)
    training = ShardedTraining(model, options)
    set_in_place(model, training)
    training.follow()
    return training


def _restore_forward(model: nn.Module) -> None:
    if isinstance(ours := vars(model).get("forward"), _Forward):
        del vars(model)["forward"]
        if ours.own is not None:
            vars(model)["forward"] = ours.own


class _Forward:
    """The attribute ``forward`` of an enabled model: direct calls of it are planned as calls of the model.

    Where the model has hooks, which such a call leaves out, it runs as plain PyTorch, as it does within a
    planned call, and within a function that was assigned in its place. In a pickle, the method of the class
    takes its place.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model, self.own = weakref.ref(model), vars(model).get("forward")
        self.__signature__ = signature(model.forward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        model = cast("nn.Module", self._model())
        inside = torch.compiler.is_compiling() or is_captured() or vars(model).get("forward") is not self
        if inside or has_hooks(model) or not torch.is_grad_enabled():
            own = self.own or partial(type(model).forward, model)
            return own(*args, **kwargs)
        return model(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """All other attributes are those of the method: accelerate wraps the function of it."""
        model = cast("nn.Module", self._model())
        return getattr(self.own or MethodType(type(model).forward, model), name)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = memo.get(id(self._model()))
        return self if copied is None else copied.forward

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._model(), "forward")


class _Copies:
    """An attribute of an enabled model that enables its deep copies; a pickle has None in its place."""

    def __init__(self, model: nn.Module) -> None:
        self._model = weakref.ref(model)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Copies | None:
        model = self._model()
        copied, training = memo.get(id(model)), _enabled.get(model) if model is not None else None
        if copied is None or training is None:
            return None
        _enable(copied, training.options)
        return cast("_Copies", vars(copied)[_COPIES])

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()


def _target(model: nn.Module) -> nn.Module:
    """The module to enable.

    Raises:
        TypeError: if ``model`` is no module, or its calls are compiled already.
    """
    check_module(model)
    model = inside_of(model)
    if isinstance(model, CompiledModule):
        raise TypeError("the model was made by checkmate.torch.compile: enable its .original instead")
    others = in_place(model)
    if original_of(model) is not None or not (
        others is None or isinstance(others, PlannedTraining | ShardedTraining)
    ):
        raise TypeError(
            "the model is compiled by torch.compile, which would drop the budget: enable the model itself. "
            "lowering='inductor' compiles the planned graphs"
        )
    return model

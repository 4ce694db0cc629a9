"""The bytes of optimizers' states, noted after steps that PyTorch's global hooks report."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container
from functools import cache
from inspect import Parameter, signature
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from checkmate_torch.ops.storages import rounded, storages_of

__all__ = ["States", "calls_the_model", "on_steps", "state_bytes"]


def state_bytes(optimizer: Optimizer) -> int:
    """Bytes of an optimizer's state as it is now."""
    storages = storages_of(dict(optimizer.state)).values()
    return sum(rounded(storage.nbytes(), storage.device) for storage in storages)


def calls_the_model(optimizer: Optimizer) -> bool:
    """Whether the step of an optimizer runs forward and backward passes itself, as LBFGS does.

    Such a step has a ``closure`` without a default. The bytes held between its passes are unknown.
    """
    closure = signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is Parameter.empty


class States:
    """The bytes of the optimizers that hold parameters of a model."""

    def __init__(self) -> None:
        self._sizes: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()

    def note(self, optimizer: Optimizer, parameters: Container[int]) -> bool:
        """Note the bytes of an optimizer if it holds one of ``parameters``, given by ``id``; else False."""
        holds_any = any(id(p) in parameters for group in optimizer.param_groups for p in group["params"])
        if holds_any:
            self._sizes[optimizer] = max(state_bytes(optimizer), self._sizes.get(optimizer, 0))
        return holds_any

    @property
    def size(self) -> int:
        """Bytes of all noted states."""
        return sum(self._sizes.values())


class _Watch:
    """Tells listeners about steps number 1, 2, 4, 8, … of each optimizer in this process.

    Most optimizers make their state in the first step; LBFGS's state grows with its history.
    """

    def __init__(self) -> None:
        self.listeners: weakref.WeakKeyDictionary[object, Callable[[object, Optimizer], None]] = (
            weakref.WeakKeyDictionary()
        )
        self.seen: weakref.WeakKeyDictionary[Optimizer, weakref.WeakKeyDictionary[object, int]] = (
            weakref.WeakKeyDictionary()
        )
        register_optimizer_step_post_hook(self.after)

    def after(self, optimizer: Optimizer, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        """Called by PyTorch after each step."""
        steps = self.seen.setdefault(optimizer, weakref.WeakKeyDictionary())
        for owner, listener in list(self.listeners.items()):
            steps[owner] = step = steps.get(owner, 0) + 1
            if step & (step - 1) == 0:
                listener(owner, optimizer)


_watch = cache(_Watch)  # made when first needed: it registers a hook


def on_steps(method: Callable[[Optimizer], None]) -> None:
    """Call a bound method after steps 1, 2, 4, 8, … of each optimizer, as long as its object lives."""
    _watch().listeners[method.__self__] = method.__func__  # type: ignore[attr-defined]

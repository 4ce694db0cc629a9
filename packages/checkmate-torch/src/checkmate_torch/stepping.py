"""Steps of optimizers, seen through PyTorch's global hooks: bytes of state, and calls inside of a step."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from checkmate_torch.account import state_bytes

__all__ = ["States", "calls_again", "on_steps"]


class States:
    """The state of all optimizers that hold some of a model's parameters."""

    def __init__(self) -> None:
        self._sizes: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()

    def note(self, optimizer: Optimizer, parameters: Container[int]) -> bool:
        """Note an optimizer's state as it is now, and whether it holds a parameter, given by its ``id``."""
        holds_any = any(id(p) in parameters for group in optimizer.param_groups for p in group["params"])
        if holds_any:
            self._sizes[optimizer] = state_bytes(optimizer)
        return holds_any

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(self._sizes.values())


class _Watch:
    """Tells listeners about steps number 1, 2, 4, 8, … of each optimizer in this process.

    Most optimizers make their state in the first step; that of LBFGS grows with its history.
    """

    def __init__(self) -> None:
        self.listeners: weakref.WeakKeyDictionary[object, Callable[[object, Optimizer], None]] = (
            weakref.WeakKeyDictionary()
        )
        self.seen: weakref.WeakKeyDictionary[Optimizer, weakref.WeakKeyDictionary[object, int]] = (
            weakref.WeakKeyDictionary()
        )
        self.name, self.n_calls = "", 0
        register_optimizer_step_pre_hook(self.before)
        register_optimizer_step_post_hook(self.after)

    def before(self, optimizer: Optimizer, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        """Called by PyTorch before each step."""
        self.name, self.n_calls = type(optimizer).__name__, 0

    def after(self, optimizer: Optimizer, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        """Called by PyTorch after each step."""
        self.name = ""
        steps = self.seen.setdefault(optimizer, weakref.WeakKeyDictionary())
        for owner, listener in list(self.listeners.items()):
            steps[owner] = step = steps.get(owner, 0) + 1
            if step & (step - 1) == 0:
                listener(owner, optimizer)


_watch: _Watch | None = None


def on_steps(method: Callable[[Optimizer], None]) -> None:
    """Call a bound method after steps 1, 2, 4, 8, … of each optimizer, as long as its object lives."""
    global _watch
    if _watch is None:
        _watch = _Watch()
    _watch.listeners[method.__self__] = method.__func__  # type: ignore[attr-defined]


def calls_again() -> str:
    """Note a call of a model; the name of the optimizer whose step makes it and has made another; else empty.

    Such an optimizer may hold tensors while the model runs: LBFGS holds gradients and a direction.
    """
    if _watch is None or not _watch.name:
        return ""
    _watch.n_calls += 1
    return _watch.name if _watch.n_calls > 1 else ""

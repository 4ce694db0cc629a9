"""Steps of optimizers, seen through PyTorch's global hooks."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

__all__ = ["holds_any", "on_first_step"]


class _Watch:
    """Tells listeners about the first step of each optimizer in this process."""

    def __init__(self) -> None:
        self.listeners: weakref.WeakKeyDictionary[object, Callable[[object, Optimizer], None]] = (
            weakref.WeakKeyDictionary()
        )
        self.seen: weakref.WeakKeyDictionary[Optimizer, weakref.WeakSet[object]] = weakref.WeakKeyDictionary()
        register_optimizer_step_post_hook(self.after)

    def after(self, optimizer: Optimizer, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        """Called by PyTorch after each step."""
        known = self.seen.setdefault(optimizer, weakref.WeakSet())
        for owner, listener in list(self.listeners.items()):
            if owner not in known:
                known.add(owner)
                listener(owner, optimizer)


def holds_any(optimizer: Optimizer, parameters: Container[int]) -> bool:
    """Whether an optimizer holds one of some parameters, given by their ``id``."""
    return any(id(p) in parameters for group in optimizer.param_groups for p in group["params"])


_watch: _Watch | None = None


def on_first_step(method: Callable[[Optimizer], None]) -> None:
    """Call a bound method after the first step of each optimizer, as long as its object lives."""
    global _watch
    if _watch is None:
        _watch = _Watch()
    _watch.listeners[method.__self__] = method.__func__  # type: ignore[attr-defined]

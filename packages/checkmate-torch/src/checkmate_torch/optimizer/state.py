"""Steps of optimizers, seen through PyTorch's global hooks: bytes of their state, and inside of a step."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container
from inspect import CO_OPTIMIZED, currentframe
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from checkmate_torch.memory.account import state_bytes
from checkmate_torch.ops.storages import storages_of

__all__ = ["States", "on_steps"]


class States:
    """The bytes of the optimizers that hold parameters of a model, or call it in their steps."""

    def __init__(self) -> None:
        self._sizes: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._calls: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()

    def note(self, optimizer: Optimizer, parameters: Container[int]) -> bool:
        """Note an optimizer's state as it is now, and whether it holds a parameter, given by its ``id``."""
        holds_any = any(id(p) in parameters for group in optimizer.param_groups for p in group["params"])
        if holds_any:
            self._sizes[optimizer] = max(state_bytes(optimizer), self._sizes.get(optimizer, 0))
        return holds_any

    def note_call(self) -> tuple[str, int]:
        """Note the bytes of the optimizer whose step makes this call of the model.

        Returns:
            its name, and the number of its calls so far; ``("", 0)`` outside of a step.
        """
        optimizer = _watch.stepping() if _watch is not None and _watch.stepping is not None else None
        size = None if optimizer is None else _bytes_inside(optimizer)
        if optimizer is None or size is None:
            return "", 0
        self._sizes[optimizer] = max(size, self._sizes.get(optimizer, 0))
        self._calls[optimizer] = self._calls.get(optimizer, 0) + 1
        return type(optimizer).__name__, self._calls[optimizer]

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
        self.stepping: weakref.ref[Optimizer] | None = None
        register_optimizer_step_pre_hook(self.before)
        register_optimizer_step_post_hook(self.after)

    def before(self, optimizer: Optimizer, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        """Called by PyTorch before each step."""
        self.stepping = weakref.ref(optimizer)

    def after(self, optimizer: Optimizer, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        """Called by PyTorch after each step."""
        self.stepping = None
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


def _bytes_inside(optimizer: Optimizer) -> int | None:
    """Bytes that an optimizer holds now, in its state and in local variables of its code.

    None if its step is not running, as after an error.
    """
    modules = {kind.__module__ for kind in type(optimizer).__mro__}
    found: list[object] = []
    n_found, frame = 0, currentframe()
    while frame is not None:
        if frame.f_code.co_flags & CO_OPTIMIZED and frame.f_globals.get("__name__") in modules:
            names = frame.f_locals
            found += names.values()
            if names.get("self") is optimizer:
                n_found = len(found)
            if isinstance(names, dict):
                names.clear()  # a copy, which the frame would keep; Python 3.13 makes none
        frame = frame.f_back
    if not n_found:
        return None
    held = storages_of([optimizer, found[:n_found]])
    trained = storages_of([group["params"] for group in optimizer.param_groups])
    return sum(storage.nbytes() for key, storage in held.items() if key not in trained)

"""Steps of optimizers on tensors that have shapes and no memory: the bytes that they would hold.

A copy of the optimizer, on the device ``meta``, does what the optimizer would do, and a dispatch mode sees
each storage come and go. A number that the optimizer reads from a tensor, such as a norm, is 1 there.
"""

from __future__ import annotations

import copy
import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from checkmate_torch.optimizer.separable import copied, without_kernels
from checkmate_torch.private import TorchDispatchMode, storage_id, tree_leaves

__all__ = ["WithoutMemory", "on_meta"]


def on_meta(optimizer: Optimizer) -> Optimizer:
    """A copy of an optimizer, with its state, on the device ``meta``; each parameter has a gradient.

    Counts of steps, which optimizers read, stay real: tensors of the state without dimensions.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    twins = {id(p): nn.Parameter(_like(p), requires_grad=p.requires_grad) for p in parameters}
    for p in twins.values():
        p.grad = torch.empty_like(p) if p.requires_grad else None
    memo: dict[int, Any] = dict(twins)
    for value in tree_leaves(
        [dict(state) for state in optimizer.state.values() if isinstance(state, Mapping)]
    ):
        if isinstance(value, Tensor) and value.dim():
            memo[id(value)] = _like(value)
    twin = without_kernels(copied(optimizer, twins))
    twin.state = defaultdict(
        dict, {memo.get(id(k), k): copy.deepcopy(state, memo) for k, state in optimizer.state.items()}
    )
    return twin


class WithoutMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the storages on the device ``meta`` that are made in its block.

    Attributes:
        live: bytes of those that live now.
        peak: the maximum of ``live``.
    """

    def __init__(self) -> None:
        """Nothing was made yet."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        _types: object,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Run an op."""
        for value in tree_leaves((args, kwargs)):
            if isinstance(value, Tensor):
                self._follow(value.untyped_storage(), 0)
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default):
            (read,) = args
            if isinstance(read, Tensor) and read.is_meta:
                return 1.0 if read.is_floating_point() else 1
        made = func(*args, **(kwargs or {}))
        for value in tree_leaves(made):
            if isinstance(value, Tensor) and value.is_meta:
                self._follow(value.untyped_storage(), value.untyped_storage().nbytes())
        return made

    def _follow(self, storage: torch.UntypedStorage, size: int) -> None:
        key = storage_id(storage)  # that of a storage that is gone is used again
        if key in self._known:
            return
        self._known.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._freed, key, size).atexit = False

    def _freed(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


def _like(value: Tensor) -> Tensor:
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")

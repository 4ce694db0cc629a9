"""Live bytes over the ops that run: each storage counts from the op that makes it until it is freed.

    live after op k = bytes held before + Σ storages that were made by ops 1 … k and are not freed

Code that runs on tensors without memory allocates and frees in the order of eager PyTorch: a model on fake
tensors with autograd on, an optimizer's step on the device ``meta``. Where autograd would overwrite a real
gradient in place, the new storage replaces the old one in the count.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from checkmate_torch.costs.price import call_key
from checkmate_torch.ops.recompute_rules import shape_before_sum
from checkmate_torch.ops.storages import rounded, tensors_in
from checkmate_torch.private import (
    OpOverload,
    TorchDispatchMode,
    is_sole_gradient,
    local_of,
    storage_id,
)

__all__ = ["READS", "LiveBytes"]

READS = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.item.default,
    torch.ops.aten.equal.default,
}
"""Ops by which code reads a number from a tensor."""

_IN_BFLOAT16 = {torch.ops.aten._grouped_mm.default}
"""Ops whose kernels on the CPU take other types, but not their rules for tensors without memory."""
_IN_PLACE = {
    torch.ops.aten.add.Tensor: 2,
    torch.ops.aten.index_add.default: 1,
    torch.ops.aten.index_put.default: 1,
    torch.ops.aten.scatter.src: 1,
    torch.ops.aten.scatter_add.default: 1,
    torch.ops.aten.masked_fill.Scalar: 1,
}
"""Ops that autograd runs in place on real gradients → number of leading arguments that it may overwrite."""
_DEVICE = torch.ops.prim.device.default
"""What ``tensor.device`` calls; most calls on fake tensors are of it."""


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context manager that counts each storage's bytes from the op that makes it until it is freed.

    Args:
        held: storage → bytes, for storages that live before the block; others from outside are counted once
            an op returns them. None = count only storages on the device ``meta``, and none from outside.
        reads_ones: True = a number that code reads from a tensor without memory is 1; False = an error.

    Attributes:
        live: bytes now.
        moments: bytes after each op, and the op's :func:`~checkmate_torch.costs.price.call_key`.
    """

    def __init__(self, held: Mapping[int, int] | None = None, *, reads_ones: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._on_meta, self._reads_ones = held is None, reads_ones
        self._sizes = dict(held or {})
        self.live = sum(self._sizes.values())
        self.moments: list[tuple[int, Hashable]] = [(self.live, None)]

    @property
    def peak(self) -> int:
        """The most bytes that were live after an op."""
        return max(live for live, _ in self.moments)

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if func is _DEVICE:
            return func(*args, **kwargs)
        if self._on_meta:
            for x in tensors_in((args, kwargs)):
                self._add(x, 0)
        replaced = None if self._on_meta else self._overwritten(func, args)
        result = self.result_of(func, _with_all_selected(func, args), kwargs)
        for x in map(local_of, tensors_in(result)):
            size = max(x.untyped_storage().nbytes(), _reduced_bytes(func, args) if not x.dim() else 0)
            self._add(x, rounded(size, x.device))
        if replaced is not None:  # autograd would write the result there
            self._resize(replaced, 0)
        self.moments.append((self.live, call_key(func, args, kwargs)))
        return result

    def bytes_of(self, x: Tensor) -> int:
        """The bytes of a tensor's storage."""
        return self._sizes.get(storage_id(x.untyped_storage()), 0)

    def changed(self, key: int, size: int) -> None:
        """Called when a storage, by its key, counts ``size`` bytes from now on; for subclasses."""

    def charge(self, kept: int, workspace: int) -> None:
        """Count code whose ops were not seen: ``kept`` bytes stay live, ``workspace`` bytes were freed."""
        self.live += kept
        self.moments.append((self.live + workspace, None))

    def result_of(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
        """Run an op; subclasses may answer another way."""
        if func in _IN_BFLOAT16 and args[0].dtype is not torch.bfloat16:
            return _in_bfloat16(func, args, kwargs)
        try:
            return func(*args, **kwargs)
        except RuntimeError:
            if not self._reads_ones or func not in READS:
                raise
            if func is torch.ops.aten.equal.default or args[0].dtype == torch.bool:
                return True
            return 1.0 if args[0].is_floating_point() else 1

    def _add(self, x: Tensor, size: int) -> None:
        """Count the storage of a tensor until it is freed, if it is not counted yet."""
        storage = x.untyped_storage()
        key = storage_id(storage)  # the id of a freed storage is used again
        if key not in self._sizes and (x.is_meta or not self._on_meta):
            self._track(storage, size)

    def _track(self, storage: torch.UntypedStorage, size: int) -> None:
        """Count a storage until it is freed."""
        key = storage_id(storage)
        self._sizes[key] = 0
        self._resize(key, size)
        weakref.finalize(storage, self._free, key).atexit = False

    def _resize(self, key: int, size: int) -> None:
        """Count a storage with another size from now on."""
        self.live += size - self._sizes[key]
        self._sizes[key] = size
        self.changed(key, size)

    def _free(self, key: int) -> None:
        self.live -= self._sizes.pop(key)
        self.changed(key, 0)

    def _overwritten(self, func: OpOverload, args: Sequence[Any]) -> int | None:
        """The storage that autograd would overwrite with the result of an op; None = it would not.

        Autograd adds gradients in place where nothing else reads one of them, and fills gradients of parts of
        a tensor in place. It does so for real tensors only, so that it has to be mimicked for fake ones.
        """
        if torch.is_grad_enabled() or func not in _IN_PLACE:
            return None
        candidates = [x for x in args[: _IN_PLACE[func]] if isinstance(x, Tensor)]
        if len(candidates) < _IN_PLACE[func] or any(x.shape != args[0].shape for x in candidates):
            return None
        for x in candidates:
            storage = x.untyped_storage()
            if is_sole_gradient(x) and storage.nbytes() == x.nbytes and storage_id(storage) in self._sizes:
                return storage_id(storage)
        return None


def _in_bfloat16(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    """The result of an op on tensors without memory, whose rule knows bfloat16 only."""
    halves = [x.bfloat16() if isinstance(x, Tensor) and x.is_floating_point() else x for x in args]
    like = func(*halves, **kwargs)
    return torch.empty_strided(like.shape, like.stride(), dtype=args[0].dtype, device=like.device)


def _with_all_selected(func: OpOverload, args: Sequence[Any]) -> Sequence[Any]:
    """The arguments of an op, in which each boolean mask selects all elements, the most that it may."""
    if func is not torch.ops.aten.index.Tensor:
        return args
    indices: list[Tensor | None] = []
    for x in args[1]:
        if isinstance(x, Tensor) and x.dtype == torch.bool:
            indices += [x.new_empty(x.numel(), dtype=torch.long) for _ in range(x.dim())]
        else:
            indices.append(x)
    return args[0], indices


def _reduced_bytes(func: OpOverload, args: Sequence[Any]) -> int:
    """Bytes of the storage in which a loss leaves its single number, if it is larger than that; else 0."""
    operands = tensors_in(args)
    shape = shape_before_sum(func, operands)
    return 0 if shape is None else math.prod(shape) * operands[0].element_size()

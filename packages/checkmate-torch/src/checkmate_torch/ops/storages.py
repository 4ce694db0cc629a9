"""Storages, the blocks of memory behind tensors. Tensors that share one are the same bytes, counted once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass

import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.optim import Optimizer

from checkmate import UnsupportedModelError
from checkmate_torch.ops.device import counts_as_cuda
from checkmate_torch.ops.sizes import bounded, largest
from checkmate_torch.private import local_of, storage_id, tree_leaves

__all__ = [
    "CUDA_GRANULE",
    "allocated_bytes",
    "rounded",
    "shown_by",
    "storage_key",
    "storages_of",
    "stretch_of",
    "tensors_in",
]

CUDA_GRANULE = 512
"""The CUDA caching allocator rounds every block up to a multiple of this many bytes."""


def tensors_in(values: object) -> list[Tensor]:
    """The tensors in a nest of containers."""
    return [x for x in tree_leaves(values) if isinstance(x, Tensor)]


def shown_by(*nodes: Node) -> list[Tensor]:
    """The fake tensors that nodes of a joint graph show."""
    return tensors_in([node.meta.get("val") for node in nodes])


def storage_key(value: torch.Tensor) -> int:
    """A number that identifies the storage of a tensor, real or fake, as long as the tensor lives.

    Raises:
        UnsupportedModelError: for tensors without a plain storage, e.g. sparse ones.
    """
    try:
        return storage_id(value.untyped_storage())
    except NotImplementedError as error:
        raise UnsupportedModelError(
            f"a {value.layout} tensor has no plain storage: Checkmate plans dense (strided) tensors only. "
            "Turn it into a dense one; an embedding's sparse gradients are off with sparse=False"
        ) from error


def allocated_bytes(value: torch.Tensor) -> int:
    """Bytes that the allocator gives to a storage; if its size may change, the largest planned for.

    Raises:
        UnsupportedModelError: if its size depends on data.
    """
    size = bounded(value.untyped_storage().nbytes())
    return rounded(size, value.device)


def rounded(size: int, device: torch.device) -> int:
    """The bytes that the allocator of a device takes for a storage."""
    return -(-size // CUDA_GRANULE) * CUDA_GRANULE if counts_as_cuda(device) else size


def storages_of(resident: object) -> dict[int, torch.UntypedStorage]:
    """The distinct storages, by their keys, of modules, optimizers, tensors, and containers of these.

    Modules have parameters, buffers and gradients, optimizers their state, tensors their gradients.
    """
    found: dict[int, torch.UntypedStorage] = {}
    for tensor in _tensors(resident):
        found.setdefault(storage_key(tensor), tensor.untyped_storage())
    return found


def _tensors(value: object) -> Iterator[Tensor]:
    """Every tensor that belongs to a value; other leaves have none."""
    if isinstance(value, Tensor):
        yield local_of(value)
        if value.is_leaf and value.grad is not None:
            yield local_of(value.grad)
    elif isinstance(value, nn.Module):
        yield from _tensors([*value.parameters(), *value.buffers()])
    elif isinstance(value, Optimizer):
        yield from _tensors(value.state)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _tensors(item)
    elif is_dataclass(value) and not isinstance(value, type):
        yield from _tensors([getattr(value, field.name) for field in fields(value)])


def stretch_of(value: torch.Tensor) -> range:
    """The range of a tensor's elements in its storage, from the first to the last, counted in elements.

    >>> list(stretch_of(torch.zeros(10)[2:6:2]))
    [2, 3, 4]
    """
    start = largest(value.storage_offset())
    shape, stride = tuple(map(largest, value.shape)), tuple(map(largest, value.stride()))
    last = start + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    return range(start, last + 1) if all(shape) else range(start, start)

"""Operators, random states, process groups, modules, storages, and the GPU."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._ops import OpOverload
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

__all__ = [
    "OpOverload",
    "active_ddp",
    "argument_names",
    "is_mutable",
    "registries",
    "run_and_save_rng_state",
    "run_with_rng_state",
    "sleep_on_gpu",
    "storage_id",
    "store_of",
    "tree_leaves",
    "tree_map",
    "tree_map_only",
]


def argument_names(op: OpOverload) -> list[str]:
    """The names of an operator's arguments, in order."""
    return [argument.name for argument in op._schema.arguments]


def is_mutable(op: OpOverload) -> bool:
    """Whether an operator overwrites one of its arguments."""
    return bool(op._schema.is_mutable)


def active_ddp() -> DistributedDataParallel | None:
    """The DDP module that is running forward, if one is."""
    return DistributedDataParallel._get_active_ddp_module()  # type: ignore[no-any-return,no-untyped-call]


def store_of(group: dist.ProcessGroup | None) -> Any:
    """The key-value store through which the ranks of a group found each other; None = the default group."""
    return dist.distributed_c10d._get_process_group_store(group or dist.distributed_c10d._get_default_group())


def registries(module: nn.Module) -> dict[str, object]:
    """The tables in which a module keeps parameters, buffers and submodules: attribute name → table."""
    names = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
    return {name: getattr(module, name) for name in names}


def storage_id(storage: torch.UntypedStorage) -> int:
    """A number that identifies a storage, real or fake, as long as it lives."""
    return int(storage._cdata)


def sleep_on_gpu(cycles: int) -> None:
    """Keep the current CUDA stream busy for a number of cycles, so that later kernels queue up."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]

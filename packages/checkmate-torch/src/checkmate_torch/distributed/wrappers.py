"""Wrappers around models: run the module inside of DDP; refuse wrappers that start collectives in a graph.

DistributedDataParallel around a whole model works: its own work stays outside of the planned graph. Other
wrappers start collectives in the middle of a model, where no plan can count their bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from checkmate import UnsupportedModelError
from checkmate_torch.private import active_ddp, splits_ddp_graphs

__all__ = [
    "bucket_bytes",
    "inside_of",
    "refuse_split_graphs",
    "refuse_wrappers",
    "run_inside",
]


def bucket_bytes() -> int:
    """Bytes of the buckets of the DDP module that is running forward; 0 without one.

    DDP sums gradients in buckets, which live from the first step to the last and are as large as all
    gradients together.
    """
    ddp = active_ddp()
    return 0 if ddp is None else sum(p.nbytes for p in ddp.parameters() if p.requires_grad)


def inside_of(model: nn.Module) -> nn.Module:
    """The module inside of a DDP module; any other module itself."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def run_inside(
    model: nn.Module, run: Callable[..., Any], args: Sequence[object], kwargs: Mapping[str, object]
) -> object:
    """Call ``run(module, …)`` for a module; for a DDP module, call it for the module inside.

    DDP's own work around that module stays outside the graph.
    """
    inside = inside_of(model)
    if inside is model:
        return run(model, *args, **kwargs)
    model.__dict__["module"] = _Captured(partial(run, inside), inside)  # DDP calls this attribute
    try:
        return model(*args, **kwargs)
    finally:
        del model.__dict__["module"]


class _Captured:
    """Replaces the module inside DDP: calls run the captured one, attributes are the module's own."""

    def __init__(self, run: Callable[..., Any], module: nn.Module) -> None:
        self._run, self._module = run, module

    def __call__(self, *args: object, **kwargs: object) -> object:
        return self._run(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def refuse_split_graphs() -> None:
    """Raise UnsupportedModelError if Dynamo splits the DDP module at its buckets, which is the default."""
    if active_ddp() is not None and splits_ddp_graphs():
        raise UnsupportedModelError(
            "torch.compile splits the graph of a DDP module at its buckets, so that no budget can bound the "
            "step: set torch._dynamo.config.optimize_ddp = False, or use checkmate.torch.compile"
        )


def refuse_wrappers(model: nn.Module) -> None:
    """Raise UnsupportedModelError if the model or a part is a wrapper that moves or sums parameters."""
    if not dist.is_available():  # then there are no such wrappers
        return
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel  # slow to import

    for name, part in model.named_modules():
        where = f"part {name!r} of this module" if name else "this module"
        if isinstance(part, FSDPModule):
            raise UnsupportedModelError(
                f"fully_shard was applied to {where}, and its collectives can't be in a planned graph: "
                "enable the sharded model instead, checkmate.torch.enable(model, budget), which plans each "
                "rank's whole step. Or compile each block first, then shard the compiled blocks and the model"
            )
        if isinstance(part, DistributedDataParallel | nn.DataParallel | FullyShardedDataParallel):
            raise UnsupportedModelError(
                f"{where} is a {type(part).__name__}, whose collectives can't be in a planned graph: use "
                "compile with DistributedDataParallel around the whole model, or with fully_shard around "
                "compiled blocks"
            )

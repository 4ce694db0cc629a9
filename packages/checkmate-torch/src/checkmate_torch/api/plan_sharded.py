"""Planning ahead for a model that ``fully_shard`` shards: a rank's step, without ranks and without memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import nn

from checkmate_torch.capture.arguments import Loss, check_loss, check_module, check_optimizer
from checkmate_torch.capture.fake_twins import on_fakes
from checkmate_torch.ops.device import Target, for_target
from checkmate_torch.optimizer.meta_step import optimizer_bytes
from checkmate_torch.optimizer.separable import copied
from checkmate_torch.planning.options import Options
from checkmate_torch.planning.sharded.decide import ShardedSearch, ShardedTwin
from checkmate_torch.private import fake_ranks

__all__ = ["Shard", "checked_ranks", "sharded_step"]

Shard: TypeAlias = Callable[[nn.Module], object]
"""Applies ``fully_shard`` to a model: to its blocks, then to the model."""


def checked_ranks(shard: Shard | None, world_size: int | None) -> tuple[Shard, int] | None:
    """Both, or None without both.

    Raises:
        TypeError: if one is given without the other.
    """
    if shard is not None and world_size is not None:
        return shard, world_size
    if shard is None and world_size is None:
        return None
    raise TypeError("shard and world_size go together: a function that shards the model, and a number")


@contextmanager
def sharded_step(
    model: nn.Module,
    example_inputs: object,
    shard: Shard,
    world_size: int,
    *,
    loss: Loss | None,
    device: str | torch.device | None,
    settings: Mapping[str, Any],
) -> Iterator[ShardedSearch]:
    """Within the block, the step of rank 0 of a model that is sharded over ``world_size`` ranks.

    Args:
        model: not sharded; real, fake, or on the device ``meta``.
        example_inputs: as :func:`checkmate_torch.trace` takes them.
        shard: shards a twin of the model.
        world_size: the number of ranks. Where ``torch.distributed`` runs already, it must be that number.
        loss: from the model's output to a scalar.
        device: as in :func:`checkmate_torch.trace`.
        settings: of :class:`~checkmate_torch.planning.options.Options`.

    Raises:
        TypeError: if ``shard`` can't be called.
        UnsupportedModelError: if ``shard`` does not shard the model itself, too.
        ValueError: if ``world_size`` is below 2, or not the number of ranks of the running job.
    """
    check_module(model)
    check_loss(loss)
    if not callable(shard):
        raise TypeError(f"shard is {shard!r}, must be a function that applies fully_shard to a model")
    running = dist.is_available() and dist.is_initialized()
    if world_size < 2 or (running and dist.get_world_size() != world_size):
        ranks = f", and this job has {dist.get_world_size()} ranks" if running else ""
        raise ValueError(f"world_size is {world_size}{ranks}: it must be the number of ranks, 2 or more")
    if settings.get("optimizer") is not None:
        check_optimizer(settings["optimizer"])
    target = Target.parse(device)
    with for_target(target), nullcontext() if running else fake_ranks(world_size):
        given = {"workspaces": None, **settings, "process_group": "alone", "optimizer": None}
        options = Options.parse(**(given if target is None else target.settings(given)))
        mode, twin, args, kwargs = on_fakes(model, example_inputs, None if target is None else target.device)
        names = {id(p): name for name, p in model.named_parameters()}
        shard(twin)  # outside of the mode, in which no mesh can be made
        if (optimizer := settings.get("optimizer")) is not None:
            shards = {key: twin.get_parameter(name) for key, name in names.items()}
            options = replace(options, optimizer_bytes=optimizer_bytes(copied(optimizer, shards)))
        yield ShardedSearch.of(ShardedTwin.of(twin, mode, options, loss), args, kwargs, options)

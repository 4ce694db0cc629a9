"""A rank's peaks where a model is sharded over ranks, and the blocks that ``checkmate fit --fsdp`` shards."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from checkmate import InfeasibleBudgetError
from checkmate.framework import ProgramError
from checkmate_torch.api.plan_sharded import Shard, sharded_step
from checkmate_torch.capture.arguments import Loss
from checkmate_torch.memory.plain_step import checked_loss
from checkmate_torch.ops.device import Target, for_target
from checkmate_torch.ops.storages import rounded
from checkmate_torch.planning.sharded.decide import ShardedSearch
from checkmate_torch.private import local_of
from checkmate_torch.tools.fit.optimizers import MakeOptimizer, update_bytes
from checkmate_torch.tools.fit.table import Fit

__all__ = ["block_sharding", "cell_of_rank"]


def cell_of_rank(
    cell: Fit,
    made: tuple[nn.Module, object, Loss | None],
    ranks: tuple[Shard, int],
    make_optimizer: MakeOptimizer | None,
    target: Target | None,
    settings: Mapping[str, Any],
) -> Fit:
    """The peaks of each rank, and the extra cost within the budget of a cell.

    Args:
        cell: its batch, sequence and budget.
        made: model, example inputs and loss; the model may be sharded in place.
        ranks: the function that shards the model, and their number.
        make_optimizer: makes the optimizer of trained parameters; None = there is none.
        target: the device to predict for; None = that of the model.
        settings: of :class:`~checkmate_torch.planning.options.Options`.
    """
    model, example_inputs, loss = made
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = None if make_optimizer is None or not trained else make_optimizer(trained)
    device = None if target is None else target.name or target.device
    given = {**settings, "optimizer": optimizer}

    def scalar(output: object) -> Tensor:
        return checked_loss(output if loss is None else loss(output))

    with sharded_step(model, example_inputs, *ranks, loss=scalar, device=device, settings=given) as search:
        with for_target(target):
            updating = _updating(search, None if optimizer is None else make_optimizer)
        plain = max(search.plain.peak, updating)
        overhead = None
        if cell.budget is not None and updating <= cell.budget:
            overhead = 0.0 if plain <= cell.budget else _overhead(search, cell.budget)
        return replace(
            cell,
            plain_peak=plain,
            least_peak=min(plain, max(search.least().needed.peak, updating)),
            update_peak=updating,
            overhead=overhead,
            remark="; ".join(f"{name}: {why}" for name, why in search.unplanned.items()),
        )


def _updating(search: ShardedSearch, make_optimizer: MakeOptimizer | None) -> int:
    """Bytes while a rank updates its shards: they, their gradients, and what is held throughout."""
    shards = [p for p in search.twin.sharded.parameters() if p.requires_grad]
    gradients = sum(rounded(local_of(p).untyped_storage().nbytes(), p.device) for p in shards)
    held = sum(search.twin.rehearsal.held(*search.arguments).values())
    workspace = 0 if make_optimizer is None else update_bytes(make_optimizer(shards)).workspace
    return held + gradients + workspace


def _overhead(search: ShardedSearch, budget: int) -> float | None:
    try:
        return search.within(budget).overhead
    except InfeasibleBudgetError:
        return None


def block_sharding(names: Sequence[str] = (), dtype: torch.dtype | None = None) -> Shard:
    """A function that applies ``fully_shard`` to each block of a model, then to the model.

    Args:
        names: classes of the blocks. None = those that a model of transformers lists in
            ``_no_split_modules``; without such a list, the children of each ``ModuleList`` and ``Sequential``
            whose class occurs twice or more there. Of blocks within blocks only the outermost are sharded.
        dtype: in which parameters are gathered and gradients scattered; None = that of the parameters.
    """

    def shard(model: nn.Module) -> None:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy(param_dtype=dtype)
        for block in _blocks(model, names):
            fully_shard(block, mp_policy=policy)
        fully_shard(model, mp_policy=policy)

    return shard


def _blocks(model: nn.Module, names: Sequence[str]) -> list[nn.Module]:
    """The blocks of a model, the outermost alone.

    Raises:
        ProgramError: if no module has one of the names, or no block is found.
    """
    wanted = _classes(model, names)
    named = [module for module in model.modules() if type(module).__name__ in wanted]
    found = {id(m) for m in (named if wanted else _repeated(model)) if [*m.parameters()]}
    if blocks := [*_outermost(model, found)]:
        return blocks
    kind = type(model).__name__
    raise ProgramError(f"no module of {kind} is repeated in a list: name the blocks, --fsdp Block1,Block2")


def _classes(model: nn.Module, names: Sequence[str]) -> set[str]:
    """The names of the blocks' classes; none = the model lists none."""
    classes = {type(module).__name__ for module in model.modules()}
    if unknown := [name for name in names if name not in classes]:
        near = difflib.get_close_matches(unknown[0], classes, 3) or sorted(classes)
        raise ProgramError(f"the model has no module of class {unknown[0]!r:.60}; it has {', '.join(near)}")
    listed = {name for m in model.modules() for name in getattr(m, "_no_split_modules", None) or ()}
    return {*names} or listed & classes


def _repeated(model: nn.Module) -> Iterator[nn.Module]:
    """The children of lists of modules whose class occurs twice or more in their list."""
    for module in model.modules():
        if isinstance(module, nn.ModuleList | nn.Sequential):
            counts = Counter(map(type, module))
            yield from (child for child in module if counts[type(child)] > 1)


def _outermost(module: nn.Module, found: set[int]) -> Iterator[nn.Module]:
    """The modules below ``module`` that were found, without those inside of others."""
    for child in module.children():
        if id(child) in found:
            yield child
        else:
            yield from _outermost(child, found)

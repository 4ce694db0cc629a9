"""Predict the memory of training for each batch and sequence: what ``fit`` does.

    (model, optimizer, batch, sequence) ↦ plain peak, least peaks, extra cost within a budget

Nothing is allocated or run: :mod:`~checkmate_torch.memory.plain_step` follows the plain step on fake tensors.
The traced graph of the same step is solved for the least peak, without pieces and in those with the lowest
floor, and for the budget where the plain step does not fit.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from checkmate import (
    Budget,
    BudgetError,
    DFGraph,
    Solution,
    UnsupportedModelError,
    floor,
    keep_all_peak,
    minimum_budget,
)
from checkmate.cost import DEVICES
from checkmate.framework import AUTO, ProgramError, TracingSettings
from checkmate.units import parse_budget, parse_bytes
from checkmate_torch.adapters.frontend import made_by
from checkmate_torch.api.plan_sharded import Shard, checked_ranks
from checkmate_torch.api.trace import TracedModel, trace
from checkmate_torch.capture.arguments import Loss
from checkmate_torch.costs.price import workspaces_of
from checkmate_torch.costs.workspaces import library_bytes
from checkmate_torch.memory.plain_step import PlainStep, plain_step_of_code
from checkmate_torch.ops.device import Target, for_target, usable_bytes
from checkmate_torch.planning.dividing import decide_in_pieces, lowest_in_pieces
from checkmate_torch.private import fake_mode, registries, tree_map
from checkmate_torch.tools.fit.optimizers import MakeOptimizer, UpdateBytes, named_optimizer, update_bytes
from checkmate_torch.tools.fit.sharding import cell_of_rank
from checkmate_torch.tools.fit.table import Fit, FitTable

__all__ = ["Factory", "FitRequest", "Made", "fit", "make"]

Factory = Callable[..., Sequence[object]]
"""Maps a batch size, and a sequence length where there are any, to ``(model, example_inputs)`` or
``(model, example_inputs, loss)``."""

Made = tuple[nn.Module, object, Loss | None]
"""What a factory makes: model, example inputs, and the loss if the model does not return it."""
_TIME_S = 2.0


def fit(
    factory: Factory,
    batches: Iterable[int] = (1,),
    sequences: Iterable[int] = (),
    *,
    device: str | None = None,
    memory: int | str | None = None,
    budget: Budget | None = None,
    optimizer: str | MakeOptimizer | None = "adamw",
    dtype: torch.dtype | None = None,
    time_limit: float = _TIME_S,
    on_cell: Callable[[int, int | None], None] | None = None,
    shard: Shard | None = None,
    world_size: int | None = None,
    **settings: Unpack[TracingSettings],
) -> FitTable:
    """Find out how much memory training takes, and what a budget would cost, without memory for the model.

    A step is forward pass, loss, backward pass and update, from the second one on: the optimizer's state
    exists, gradients are ``None`` before.

    Args:
        factory: called with each batch size, and with each sequence length if ``sequences`` has any; returns
            ``(model, example_inputs)`` or ``(model, example_inputs, loss)``, as :func:`trace` takes them. It
            is called under fake tensors, so that it allocates nothing. Without ``loss`` the model returns a
            scalar.
        batches: numbers of examples.
        sequences: lengths; none = the model has no such size.
        device: as in :func:`trace`: name in :data:`checkmate.cost.DEVICES`, as ``"H100-80GB"``, also as
            ``"cuda:H100-80GB"``; ``"cuda"`` = the GPU of this machine. None = that of the model.
        memory: capacity of the GPU to predict for, in bytes or as ``"24GiB"``; None = that of ``device`` in
            the table. For a GPU that the table lacks, let ``device`` name the nearest one.
        budget: bytes, a size, or a share of the memory. The default where the memory is known is ``"auto"``:
            nine tenths of it without the CUDA context, as in :func:`plan`. Cells have a verdict only if there
            is a budget.
        optimizer: name in ``torch.optim``, with settings if need be: ``"sgd,momentum=0.9"``; a function of
            the trained parameters; or None, for forward and backward pass alone.
        dtype: of parameters, buffers and inputs that are floating-point numbers; None = as they are made.
        time_limit: seconds for each solve of a cell: for its least peak, the same in pieces, and its budget,
            which takes several solves if pieces are tried.
        on_cell: called with batch and sequence before each cell.
        shard: as in :func:`plan`: applies FSDP2's ``fully_shard`` to the model's blocks, then to the model.
            All numbers then are those of each rank, batches too. Pieces are not tried.
        world_size: the number of ranks, none of which is needed.
        **settings: :class:`~checkmate.framework.TracingSettings`. ``cost_model`` is by default the roofline
            of a device of the table, or else ``"flops"``. ``workspaces=True`` measures the
            workspaces of ops here, which convolutions need on a CPU: each distinct op runs once.

    Raises:
        BudgetError: if budget or memory can't be read.
        CostError: if there is no such device.
        ProgramError: if the factory makes something else.
        UnsupportedModelError: if there is no loss, or the model can be neither followed nor captured.
        ValueError: if there is no such optimizer, or a size is no positive number.

    >>> def factory(batch):
    ...     model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512))
    ...     return model, torch.zeros(batch, 512), lambda output: output.square().mean()
    >>> table = fit(factory, [64, 4096], budget="16MiB")
    >>> [cell.verdict for cell in table][0], table[4096].plain_peak > 2**24
    ('fits', True)
    """
    target = Target.parse(device)
    request = FitRequest(
        factory=factory,
        target=target,
        limit=_limit(budget, target, memory),
        optimizer=named_optimizer(optimizer) if isinstance(optimizer, str) else optimizer,
        dtype=dtype,
        time_limit=time_limit,
        settings=dict(settings),
        ranks=checked_ranks(shard, world_size),
    )
    cells, labels = [], ("", "")
    for batch, sequence in _places(batches, sequences):
        if on_cell is not None:
            on_cell(batch, sequence)
        cell, labels = request.answer(batch, sequence)
        cells.append(cell)
    return FitTable(
        cells=tuple(cells),
        model=labels[0],
        optimizer=labels[1],
        device=str(device or ""),
        world_size=world_size,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FitRequest:
    """The arguments of :func:`fit` that hold for every cell.

    Attributes:
        factory: makes model and inputs for a batch size and a sequence length.
        target: the device to predict for; None = the device of the model.
        limit: budget in bytes; None = no budget was given.
        optimizer: makes the optimizer of the trained parameters; None = no parameter is updated.
        dtype: of floating-point parameters, buffers and inputs; None = as the factory makes them.
        time_limit: seconds for each solve.
        settings: of :func:`~checkmate_torch.api.trace.trace`.
        ranks: the function that shards the model, and their number; None = it is not sharded.
    """

    factory: Factory
    target: Target | None
    limit: int | None
    optimizer: MakeOptimizer | None
    dtype: torch.dtype | None
    time_limit: float
    settings: dict[str, Any]
    ranks: tuple[Shard, int] | None = None

    def answer(self, batch: int, sequence: int | None) -> tuple[Fit, tuple[str, str]]:
        """Predict one cell; returns it with a description of the model and the name of the optimizer."""
        made = model, _, _ = make(self.factory, batch, sequence, self.dtype)
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = self.optimizer(trained) if self.optimizer is not None and trained else None
        labels = _described(model), "" if optimizer is None else type(optimizer).__name__
        cell = Fit(
            batch=batch, sequence=sequence, plain_peak=0, least_peak=None, update_peak=0, budget=self.limit
        )
        if self.ranks is not None:
            settings = {**self._tracing_settings(), "time_limit": self.time_limit}
            return cell_of_rank(cell, made, self.ranks, self.optimizer, self.target, settings), labels
        captured = self._captured(made, optimizer)
        plain, updating = self._peaks(made, captured, optimizer)
        cell = replace(
            cell,
            plain_peak=plain,
            update_peak=updating,
            overhead=0.0 if self.limit is not None and plain <= self.limit else None,
        )
        if isinstance(captured, TracedModel):
            with for_target(self.target):
                cell = self._with_recomputation(cell, captured)
        else:
            cell = replace(cell, remark=str(captured))
        return cell, labels

    def _peaks(
        self, made: Made, captured: TracedModel | UnsupportedModelError, optimizer: Optimizer | None
    ) -> tuple[int, int]:
        """The peak of the plain step and the peak of its update, in bytes.

        Raises:
            UnsupportedModelError: if the model's code can neither be followed nor captured.
        """
        model, example_inputs, loss = made
        place = next((p.device for p in model.parameters()), torch.device("cpu"))
        traced = captured if isinstance(captured, TracedModel) else None
        step = None if traced is None else traced.plain
        with for_target(self.target):
            update = UpdateBytes() if optimizer is None else update_bytes(optimizer)
            libraries = library_bytes(place if self.target is None else self.target.device)
            if step is None:
                step = plain_step_of_code(model, example_inputs, loss)
        if step is not None:
            return _peaks_of_code(step, traced, update, libraries)
        if not isinstance(captured, TracedModel):
            raise captured
        return _peaks_of_graph(captured, update)

    def _captured(self, made: Made, optimizer: Optimizer | None) -> TracedModel | UnsupportedModelError:
        """The traced step, or the reason why it can't be captured."""
        model, example_inputs, loss = made
        settings = self._tracing_settings()
        device = None if self.target is None else self.target.name or self.target.device
        try:
            return trace(model, example_inputs, loss=loss, optimizer=optimizer, device=device, **settings)
        except UnsupportedModelError as error:
            return error

    def _tracing_settings(self) -> dict[str, Any]:
        settings = {"progress": False} | self.settings
        if self.target is None or self.target.name is None:
            settings = {"cost_model": "flops"} | settings
        return settings

    def _with_recomputation(self, cell: Fit, captured: TracedModel) -> Fit:
        """A cell with its least peaks, and the extra cost within the limit if the plain step exceeds it."""
        found = [self._least(captured.graph)]
        divided = lowest_in_pieces(captured.kind, captured.priced)
        if floor(divided.graph).size < (found[0].peak or math.inf):
            found.append(self._least(divided.graph))
        peaks = [min(max(s.peak or cell.plain_peak, cell.update_peak), cell.plain_peak) for s in found]
        cell = replace(cell, least_peak=peaks[0], split_peak=min(peaks))
        limit = self.limit
        if limit is None or cell.overhead is not None or min(peaks) > limit:
            return cell
        options = replace(captured.options, budget=limit, time_limit=self.time_limit)
        kind = replace(captured.kind, options=options)
        step = replace(captured.priced, peak_now=cell.plain_peak)
        found.append(decide_in_pieces(kind, step, throw=False)[1])
        costs = [s.timeline.cost for s in found if s.timeline is not None and s.timeline.peak <= limit]
        return replace(cell, overhead=min(costs) / captured.graph.ideal_cost - 1)

    def _least(self, graph: DFGraph) -> Solution:
        """The schedule of the least peak that is found in time."""
        return minimum_budget(graph, fixed_order=True, time_limit=self.time_limit)


def make(factory: Factory, batch: int, sequence: int | None = None, dtype: torch.dtype | None = None) -> Made:
    """Call a factory under fake tensors, and cast what it makes to a dtype.

    Raises:
        ProgramError: if it takes other arguments, or makes something else.
    """
    sizes = (batch,) if sequence is None else (batch, sequence)
    try:
        signature(factory).bind(*sizes)
    except TypeError as error:
        wanted = "batch" if sequence is None else "batch, sequence"
        raise ProgramError(
            f"{factory!r} can't be called with ({wanted}): {error}. A factory for fit takes the "
            "batch size, and the sequence length if there are sequences"
        ) from error
    except ValueError:  # a factory without a signature
        pass
    with fake_mode(), warnings.catch_warnings():  # of a layer that is copied
        warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
        made = factory(*sizes)
        model, example_inputs, loss = made_by(factory, made)
        if dtype is not None:
            _cast(model, dtype)
            example_inputs = tree_map(partial(_as, dtype), example_inputs)
    return model, example_inputs, loss


def _described(model: nn.Module) -> str:
    """The name of a model's class, and the number of its parameters."""
    count = sum(p.numel() for p in model.parameters())
    size = f"{count / 1e9:.3g} G" if count >= 1e9 else f"{count / 1e6:.3g} M"
    return f"{type(model).__name__}, {size} parameters"


def _peaks_of_code(
    step: PlainStep, traced: TracedModel | None, update: UpdateBytes, libraries: int
) -> tuple[int, int]:
    """Both peaks in bytes, from the step of the model's own code."""
    known = {} if traced is None else workspaces_of(traced.graph, traced.traced.nodes)
    updating = step.moments[-1][0] + update.workspace
    besides = update.state + libraries
    return besides + max(step.peak(known), updating), besides + updating


def _peaks_of_graph(traced: TracedModel, update: UpdateBytes) -> tuple[int, int]:
    """Fallback where the model's own code can't be followed: both peaks from the captured graph."""
    trained = sum(p.nbytes for p in traced.model.parameters() if p.requires_grad)
    updating = traced.graph.base_size + trained + update.workspace
    return max(traced.plain_peak or keep_all_peak(traced.graph), updating), updating


def _cast(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast parameters and buffers in place: ``model.to(dtype)`` fails on fake tensors."""
    cast: dict[int, object] = {}
    for module in model.modules():
        for kind in ("_parameters", "_buffers"):
            table: Any = registries(module)[kind]
            for name, value in table.items():
                table[name] = cast.setdefault(id(value), _as(dtype, value))


def _as(dtype: torch.dtype, value: object) -> object:
    """A floating-point tensor in another dtype; any other value is returned unchanged."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    like = torch.empty_strided(value.shape, value.stride(), dtype=dtype, device=value.device)
    if isinstance(value, nn.Parameter):
        return nn.Parameter(like, requires_grad=value.requires_grad)
    return like.requires_grad_(value.requires_grad)


def _places(batches: Iterable[int], sequences: Iterable[int]) -> list[tuple[int, int | None]]:
    lengths: list[int | None] = [*sequences] or [None]
    places = [(batch, sequence) for batch in batches for sequence in lengths]
    if not places or any(n is not None and n < 1 for place in places for n in place):
        raise ValueError("batches and sequences must be positive numbers, and at least one batch")
    return places


def _limit(budget: Budget | None, target: Target | None, memory: int | str | None) -> int | None:
    """The budget in bytes; None if there is none.

    Raises:
        BudgetError: if it is a share of a device that is not named, or the memory is not that of a GPU.
    """
    name = None if target is None else target.name
    if memory is not None:
        capacity = parse_bytes(memory)
    elif name is not None:
        capacity = DEVICES[name].memory_bytes
    else:
        if budget == AUTO or isinstance(budget, float) or (isinstance(budget, str) and "%" in budget):
            raise BudgetError(
                f"budget {budget!r} is a share of a device: name one of {list(DEVICES)}, give its memory, or "
                "write bytes"
            )
        return None if budget is None else parse_budget(budget, 2**62)
    if budget not in (None, AUTO):
        return parse_budget(budget or 0, capacity)
    if usable_bytes(capacity) <= 0:
        raise BudgetError(
            f"memory {memory!r} is {capacity} bytes, less than a CUDA context takes: write 24GiB"
        )
    return usable_bytes(capacity)

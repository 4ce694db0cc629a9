"""The peak of the plain eager step: max over time of M₀ + Σ live storages, followed while autograd runs.

Dynamo's graph calls PyTorch's own functions. Run on fake tensors with autograd on, it allocates and frees in
the order of eager PyTorch: what the backward pass keeps, when it lets go, where gradients are added in place.
The joint graph, which is planned, keeps other tensors in another order.
"""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.fx import GraphModule, Interpreter, Node

from checkmate import DFGraph, keep_all_peak
from checkmate_torch.costs import Workspaces
from checkmate_torch.outer_loss import LossBytes, loss_bytes
from checkmate_torch.private import (
    OpOverload,
    TorchDispatchMode,
    fake_mode,
    is_checkpoint,
    is_sole_gradient,
    run_checkpoint,
    saves_are_hooked,
    storage_id,
    tree_leaves,
    unfaked,
    untraced,
)
from checkmate_torch.safety import REDUCED_IN_PLACE
from checkmate_torch.storages import CUDA_GRANULE
from checkmate_torch.symbols import largest

__all__ = ["EagerStep", "eager_step"]

_log = logging.getLogger(__name__)
_PRECISION = 0.02
_SMALL = 2**13
"""Peaks that differ by less than this share, or these bytes, are taken as equal."""

_IN_PLACE = {
    torch.ops.aten.add.Tensor: 2,
    torch.ops.aten.index_add.default: 1,
    torch.ops.aten.index_put.default: 1,
    torch.ops.aten.scatter.src: 1,
    torch.ops.aten.scatter_add.default: 1,
    torch.ops.aten.masked_fill.Scalar: 1,
}
"""Ops that autograd runs in place on real gradients → number of leading arguments that it may overwrite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerStep:
    """The memory of a training step as eager PyTorch would run it.

    Attributes:
        moments: bytes that are live after each op, those of the graph's inputs included, and the op's key in
            :class:`Workspaces`.
        loss: the bytes of the loss, where it was part of the run.
    """

    moments: Sequence[tuple[int, Hashable]]
    loss: LossBytes | None = None

    def peak(self, workspaces: Workspaces | None = None) -> int:
        """The most bytes that the step holds at once, besides those that its graph does not show.

        Args:
            workspaces: the bytes that ops need beyond their outputs; None = none do.
        """
        known = {} if workspaces is None else workspaces.known
        return max(live + known.get(op, 0) for live, op in self.moments)

    def peak_beside(
        self,
        graph: DFGraph,
        nodes: Sequence[Node | None],
        fixed: int,
        *,
        planned: int | None = None,
        update: int = 0,
    ) -> int:
        """The peak with the workspaces of a priced joint graph, and with bytes that no graph shows.

        Where the peak of that graph without recomputation is hardly higher, it is taken, so that a share of
        100 % needs no recomputation.

        Args:
            graph: priced.
            nodes: the FX node of each op.
            fixed: bytes that the step holds throughout.
            planned: bytes of the graph's peak without recomputation; None = that of its base order.
            update: bytes of the largest workspace of an update at the end of the step.
        """
        peak = fixed + max(self.peak(Workspaces.of(graph, nodes)), self.moments[-1][0] + update)
        planned = keep_all_peak(graph) if planned is None else planned
        return max(peak, planned) if planned - peak <= max(_SMALL, _PRECISION * peak) else peak


def eager_step(
    gm: GraphModule,
    example_inputs: Sequence[object],
    *,
    loss: int | LossBytes | None = 0,
    returns_loss: bool = False,
    accumulates: bool = False,
) -> EagerStep | None:
    """Follow the memory of a captured graph and its backward pass, without memory and without real tensors.

    Sizes that may change are the largest that are planned for; no guard is added. Random states, caches and
    the inputs stay as they are.

    Args:
        gm: as Dynamo captured it, with PyTorch's own functions.
        example_inputs: of the graph; real or fake.
        loss: the bytes of the caller's loss, as far as known, see :mod:`checkmate_torch.outer_loss`: it reads
            all outputs that need a gradient. 0 = the loss is among the outputs: the backward pass starts at
            those that are numbers, or at all if none is.
        returns_loss: whether the first output is a loss, and the others are what it was computed from; then
            the backward pass starts there, and the bytes of the loss are found out.
        accumulates: whether gradients of all inputs are held already; their bytes are not counted.

    Returns:
        None if the graph can't run in this way, e.g. because a size depends on data.
    """
    if any(parameter.requires_grad for parameter in gm.parameters()):
        return None  # gradients would be written to it
    try:
        with untraced(), unfaked(), fake_mode(), torch.enable_grad(), _apart():
            inputs, held = _twins(gm, example_inputs, accumulates)
            with _Follower(held) as follower:
                if returns_loss:
                    return _run_with_loss(gm, inputs, follower)
                return _run(gm, inputs, follower, loss)
    except Exception as error:  # noqa: BLE001 - any op may lack a rule for fake tensors
        _log.debug("the plain step's peak is not known: %s", error, exc_info=True)
        return None


def _run(
    gm: GraphModule, inputs: Sequence[object], follower: _Follower, loss: int | LossBytes | None
) -> EagerStep:
    outputs = _differentiable(_Eager(gm).run(*inputs))
    starts = [x for x in outputs if not x.dim()] if loss == 0 else []
    if starts:
        follower.charge(loss_bytes(loss, 0))
    else:
        starts = [_OuterLoss.apply(follower, loss, *outputs)]  # type: ignore[no-untyped-call]
    torch.autograd.backward(starts)
    return EagerStep(moments=follower.moments)


def _run_with_loss(gm: GraphModule, inputs: Sequence[object], follower: _Follower) -> EagerStep:
    """Run a graph that returns a loss and the model's outputs; compare the bytes before and after the loss.

    A gradient hook of an output runs right before the model's backward pass does.
    """
    moments = follower.moments
    starts, ends = 0, 0

    def loss_starts() -> None:
        nonlocal starts
        starts = len(moments)

    def loss_ends(_: Tensor) -> None:
        nonlocal ends
        ends = len(moments)

    loss, *rest = tree_leaves(_Eager(gm, loss_starts).run(*inputs))
    outputs = [x for x in _differentiable(rest) if x is not loss]
    for x in outputs:
        x.register_hook(loss_ends)  # type: ignore[no-untyped-call]
    torch.autograd.backward([loss])
    gradients = sum(follower.bytes_of(x) for x in outputs)
    lives = [live - moments[starts - 1][0] - gradients for live, _ in moments[starts:ends]]
    last = max(0, lives[-1]) if lives else 0
    model = _of_model(gm)
    pairs = zip(gm.graph.find_nodes(op="placeholder"), inputs, strict=True)
    targets = {x.untyped_storage() for n, x in pairs if isinstance(x, Tensor) and n not in model}
    found = LossBytes(
        kept=last + sum(storage.nbytes() for storage in targets),
        workspace=max([0, *lives]) - last,
        outputs=gradients,
    )
    return EagerStep(moments=moments, loss=found)


class _Eager(Interpreter):
    """Runs a captured graph, frees each value after its last use, and recomputes what is checkpointed."""

    def __init__(self, gm: GraphModule, loss_starts: Callable[[], None] | None = None) -> None:
        super().__init__(gm)
        self._loss_starts = loss_starts
        model = _of_model(gm) if loss_starts is not None else ()
        self._last = next((n for n in reversed(gm.graph.nodes) if n in model), None)

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        if n is self._last and self._loss_starts is not None:
            self._loss_starts()
        return result if n.users or n.op == "output" else None

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if is_checkpoint(target):
            return run_checkpoint(lambda body, *values: _Eager(body).run(*values), args, kwargs)
        return super().call_function(target, args, kwargs)


def _of_model(gm: GraphModule) -> set[Node]:
    """The nodes that the outputs after the first one, which is the loss, are computed from."""
    _loss, *rest = tree_leaves(gm.graph.output_node().args[0])
    needed: set[Node] = set()
    stack = [n for n in rest if isinstance(n, Node)]
    while stack:
        if (node := stack.pop()) not in needed:
            needed.add(node)
            stack += node.all_input_nodes
    return needed


class _OuterLoss(torch.autograd.Function):
    """A loss that is not known: its gradients have the layout of the model's outputs."""

    @staticmethod
    def forward(ctx: Any, follower: _Follower, loss: int | LossBytes | None, *outputs: Tensor) -> Tensor:
        ctx.follower, ctx.loss = follower, loss
        ctx.shapes = [(x.shape, x.stride(), x.dtype, x.device) for x in outputs]
        return outputs[0].new_empty(())

    @staticmethod
    def backward(ctx: Any, _gradient: Tensor) -> Any:
        made = [torch.empty_strided(s, t, dtype=d, device=v) for s, t, d, v in ctx.shapes]
        ctx.follower.charge(loss_bytes(ctx.loss, sum(map(ctx.follower.bytes_of, made))))
        return None, None, *made


class _Follower(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of every storage from the op that makes it until it is freed.

    Attributes:
        live: bytes now.
        moments: bytes after each op, and the op's key in :class:`Workspaces`.
    """

    def __init__(self, held: Mapping[int, int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = sum(held.values())
        self.moments: list[tuple[int, Hashable]] = [(self.live, None)]
        self._sizes = dict(held)

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        replaced = self._overwritten(func, args)
        result = func(*_with_all_selected(func, args), **kwargs)
        for x in tree_leaves(result):
            if isinstance(x, Tensor):
                self._add(x, _reduced_bytes(func, args) if not x.dim() else 0)
        if replaced is not None:  # the sum lies there
            self.live -= self._sizes[replaced]
            self._sizes[replaced] = 0
        self.moments.append((self.live, Workspaces.key(func, args, kwargs)))
        return result

    def bytes_of(self, x: Tensor) -> int:
        """The bytes of a tensor's storage."""
        return self._sizes.get(storage_id(x.untyped_storage()), 0)

    def charge(self, loss: LossBytes) -> None:
        """Count the bytes of a loss that has just run."""
        self.live += loss.kept
        self.moments.append((self.live + loss.workspace, None))

    def _add(self, x: Tensor, least: int) -> None:
        storage = x.untyped_storage()
        key = storage_id(storage)
        if key not in self._sizes:
            self._sizes[key] = _rounded(max(storage.nbytes(), least), storage.device)
            self.live += self._sizes[key]
            weakref.finalize(storage, self._free, key).atexit = False

    def _free(self, key: int) -> None:
        self.live -= self._sizes.pop(key)

    def _overwritten(self, func: OpOverload, args: Sequence[Any]) -> int | None:
        """The storage that autograd overwrites by the result of an op, if it does.

        It adds gradients in place where nothing else reads one of them, and fills those of parts of a tensor
        in place; never fake ones.
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


def _with_all_selected(func: OpOverload, args: Sequence[Any]) -> Sequence[Any]:
    """The arguments of an op; a mask of elements selects all of them, the most that it may."""
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
    """The bytes of the storage in which a loss leaves a single number, where that is larger."""
    if func not in REDUCED_IN_PLACE:
        return 0
    operands = [x for x in args if isinstance(x, Tensor)]
    shape: torch.Size = torch.broadcast_shapes(*(x.shape for x in operands))  # type: ignore[no-untyped-call]
    return math.prod(shape) * operands[0].element_size()


def _rounded(size: int, device: torch.device) -> int:
    return -(-size // CUDA_GRANULE) * CUDA_GRANULE if device.type == "cuda" else size


def _twins(
    gm: GraphModule, values: Sequence[object], accumulates: bool
) -> tuple[list[object], dict[int, int]]:
    """Fake tensors in the layout of a graph's inputs, sharing storages likewise; the bytes of each storage.

    Sizes that may change are in the graph, gradients that are held are in the values.
    """
    storages: dict[int, torch.UntypedStorage] = {}
    twins: list[object] = []
    gradients: list[Tensor] = []
    for node, value in zip(gm.graph.find_nodes(op="placeholder"), values, strict=True):
        shown = node.meta.get("example_value", value)
        if not isinstance(shown, Tensor):
            twins.append(largest(shown) if isinstance(shown, torch.SymInt) else value)
            continue
        storage = shown.untyped_storage()
        key = storage_id(storage)
        if key not in storages:
            size = largest(storage.nbytes())
            storages[key] = torch.empty(size, dtype=torch.uint8, device=shown.device).untyped_storage()
        twin = _view(storages[key], shown)
        held = isinstance(value, Tensor) and value.is_leaf and value.grad is not None
        if held or (accumulates and twin.requires_grad):  # the bytes are resident
            twin.grad = torch.empty_like(twin)
            gradients.append(twin.grad)
        twins.append(twin)
    sizes = {storage_id(x): _rounded(x.nbytes(), x.device) for x in storages.values()}
    return twins, sizes | {storage_id(x.untyped_storage()): 0 for x in gradients}


def _view(storage: torch.UntypedStorage, like: Tensor) -> Tensor:
    """A leaf in the layout of a tensor, at its place in the storage."""
    sizes = [[largest(n) for n in numbers] for numbers in (like.shape, like.stride())]
    empty = torch.empty(0, dtype=like.dtype, device=like.device)
    view = empty.set_(storage, largest(like.storage_offset()), *sizes)
    return view.requires_grad_(like.requires_grad)


@contextmanager
def _apart() -> Iterator[None]:
    """Keep fake tensors from the hooks and the autocast cache of the code that calls the model."""
    cached = torch.is_autocast_cache_enabled()
    outer = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
    torch.set_autocast_cache_enabled(cached and not outer)
    try:
        with saved_tensors_hooks(_same, _same) if saves_are_hooked() else nullcontext():
            yield
    finally:
        torch.set_autocast_cache_enabled(cached)


def _same(x: Tensor) -> Tensor:
    return x


def _differentiable(outputs: object) -> list[Tensor]:
    return [x for x in tree_leaves(outputs) if isinstance(x, Tensor) and x.requires_grad]

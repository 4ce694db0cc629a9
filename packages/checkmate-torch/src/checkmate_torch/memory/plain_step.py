"""The peak of the plain step, which eager PyTorch runs: max over time of M₀ + Σ live storages.

The step runs on fake tensors with autograd on, so that it allocates and frees in the order of eager PyTorch:
what the backward pass keeps, when it lets go, where gradients are added in place. The joint graph, which is
planned, keeps other tensors in another order. There are two ways to run it:

    plain_step_of_graph    the graph that Dynamo captured, which calls PyTorch's own functions
    plain_step_of_code     the model's own code: libraries take other branches, with other tensors, while
                           Dynamo captures them
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.fx import GraphModule, Interpreter, Node

from checkmate import CheckmateError, DFGraph, UnsupportedModelError, keep_all_peak
from checkmate_torch.capture.arguments import Loss
from checkmate_torch.capture.fake_twins import on_fakes
from checkmate_torch.capture.target_kernels import RunsKernelsOfTarget
from checkmate_torch.costs.price import workspaces_of
from checkmate_torch.memory.live_bytes import LiveBytes
from checkmate_torch.ops.device import current_target
from checkmate_torch.ops.sizes import largest
from checkmate_torch.ops.storages import rounded, storages_of, tensors_in
from checkmate_torch.private import (
    fake_mode,
    is_checkpoint,
    run_checkpoint,
    saves_are_hooked,
    storage_id,
    tree_leaves,
    unfaked,
    untraced,
)
from checkmate_torch.tracing.loss_bytes import LossBytes, loss_bytes
from checkmate_torch.tracing.traced_graph import ancestors

__all__ = [
    "PlainStep",
    "checked_loss",
    "count_step",
    "plain_step_of_code",
    "plain_step_of_graph",
    "starts_of_backward",
    "taken_as_real",
]

_log = logging.getLogger(__name__)
Counter = TypeVar("Counter", bound=LiveBytes)
_PRECISION = 0.02
_SMALL = 2**13
"""Bytes. Peaks that differ by at most this, or by the share ``_PRECISION``, are taken as equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainStep:
    """The memory of a training step as eager PyTorch would run it.

    Attributes:
        moments: for each op, the bytes that are live after it, inputs included, and the op's
            :func:`~checkmate_torch.costs.price.call_key`.
        loss: the bytes of the loss; None = it was not looked for.
    """

    moments: Sequence[tuple[int, Hashable]]
    loss: LossBytes | None = None

    def peak(self, workspaces: Mapping[Hashable, int] | None = None) -> int:
        """The most bytes live at once in the step's graph, with the workspaces of ops if they are given."""
        known = workspaces or {}
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
        """The peak of the whole plain step: with workspaces of ops, and with bytes that no graph shows.

        The joint graph without recomputation may need a little more. Then its peak is returned, so that a
        budget of 100 % needs no recomputation.

        Args:
            graph: the joint graph, from which the workspaces of ops are taken.
            nodes: the FX node of each op.
            fixed: bytes that the step holds throughout.
            planned: peak of the joint graph without recomputation, in bytes; None = compute it for the base
                order.
            update: bytes of the largest workspace of an update at the end of the step.
        """
        peak = fixed + max(self.peak(workspaces_of(graph, nodes)), self.moments[-1][0] + update)
        planned = keep_all_peak(graph) if planned is None else planned
        return max(peak, planned) if planned - peak <= max(_SMALL, _PRECISION * peak) else peak


def plain_step_of_graph(
    gm: GraphModule,
    example_inputs: Sequence[object],
    *,
    loss: int | LossBytes | None = 0,
    returns_loss: bool = False,
    accumulates: bool = False,
) -> PlainStep | None:
    """Run a captured graph and its backward pass on fake tensors, and note the bytes that are live.

    Sizes that may change are taken as the largest ones planned for; no guard is added. Random states, caches
    and the inputs don't change.

    Args:
        gm: as Dynamo captured it, with PyTorch's own functions.
        example_inputs: of the graph; real or fake.
        loss: the bytes of the caller's loss, as far as known, see :mod:`checkmate_torch.tracing.loss_bytes`:
            it reads all outputs that need a gradient. 0 = the loss is among the outputs: the backward pass
            starts at the scalar outputs, or at all outputs if none is a scalar.
        returns_loss: True = the first output is a loss, computed from the other outputs: the backward pass
            starts at the loss, and the bytes of the loss are found.
        accumulates: whether gradients of all inputs are held already; their bytes are not counted.

    Returns:
        None if the graph can't run in this way, e.g. because a size depends on data.
    """
    if any(parameter.requires_grad for parameter in gm.parameters()):
        return None  # the backward pass would write gradients of these parameters
    try:
        with untraced(), unfaked(), fake_mode(), torch.enable_grad(), _apart():
            inputs, held = _twins(gm, example_inputs, accumulates)
            with LiveBytes(held) as counter:
                if returns_loss:
                    return _run_with_loss(gm, inputs, counter)
                return _run(gm, inputs, counter, loss)
    except Exception as error:  # noqa: BLE001 - any op may lack a rule for fake tensors
        _log.debug("the plain step's peak is not known: %s", error, exc_info=True)
        return None


def plain_step_of_code(
    model: nn.Module, example_inputs: object, loss: Loss | None = None
) -> PlainStep | None:
    """Run forward and backward pass of a model on fake tensors, and note the bytes that are live.

    The model's output is dropped before the backward pass if there is a loss, as in
    ``loss = loss_of(model(x))``. A number that the code reads from a tensor is taken as 1, and a mask selects
    all elements. The model is left as it was.

    Args:
        model: its parameters may be real, fake, or on the device ``meta``.
        example_inputs: as :func:`checkmate_torch.trace` takes them.
        loss: from the model's output to a scalar; None = the model returns it.

    Returns:
        None if the code can't run in this way, e.g. because a size depends on data.

    Raises:
        UnsupportedModelError: if there is no scalar loss.
    """
    counter = count_step(model, example_inputs, loss, counting=partial(LiveBytes, reads_ones=True))
    return None if counter is None else PlainStep(moments=counter.moments)


def count_step(
    model: nn.Module,
    example_inputs: object,
    loss: Loss | None = None,
    *,
    counting: Callable[[Mapping[int, int]], Counter],
    applied: Callable[[nn.Module], AbstractContextManager[object]] = nullcontext,
) -> Counter | None:
    """Run the step of :func:`plain_step_of_code` under a counter of bytes.

    Args:
        model: as there.
        example_inputs: as there.
        loss: as there.
        counting: makes the counter, from the bytes of each storage that is held before.
        applied: changes how the model's fake twin runs, within a block.

    Returns:
        The counter; None if the code can't run in this way.

    Raises:
        UnsupportedModelError: if there is no scalar loss.
    """
    target = current_target()
    device = None if target is None else target.device
    mode, twin, args, kwargs = on_fakes(model, example_inputs, device)
    tensors = tensors_in(([*twin.parameters()], args, kwargs))
    gradients = {x: x.grad for x in tensors if x.is_leaf}
    storages = storages_of([twin, args, kwargs]).values()
    counter = counting({storage_id(x): rounded(x.nbytes(), x.device) for x in storages})
    try:
        with (
            applied(twin),
            mode,
            torch.enable_grad(),
            taken_as_real(),
            RunsKernelsOfTarget(),
            counter,
        ):
            output = twin(*args, **kwargs)
            found = output if loss is None else loss(output)
            del output
            checked_loss(found)
            torch.autograd.backward([found])
            return counter
    except CheckmateError:
        raise
    except Exception as error:  # noqa: BLE001 - any op may lack a rule for fake tensors
        _log.debug("the model's own code can't be followed: %s", error, exc_info=True)
        return None
    finally:
        for x, gradient in gradients.items():
            x.grad = gradient


def _run(
    gm: GraphModule, inputs: Sequence[object], counter: LiveBytes, loss: int | LossBytes | None
) -> PlainStep:
    outputs = _differentiable(_Eager(gm).run(*inputs))
    starts = starts_of_backward(outputs, loss, counter)
    outputs = [x for x in outputs if x.dim()]  # which the caller holds
    torch.autograd.backward(starts)
    return PlainStep(moments=counter.moments)


def starts_of_backward(
    outputs: Sequence[Tensor], loss: int | LossBytes | None, counter: LiveBytes
) -> list[Tensor]:
    """The numbers at which the backward pass of a step starts: scalar outputs, or a loss that is not known.

    Args:
        outputs: those of the model that need a gradient.
        loss: as in :func:`plain_step_of_graph`.
        counter: is charged with the bytes of the loss.
    """
    starts = [x for x in outputs if not x.dim()] if loss == 0 else []
    if not starts:
        return [_OuterLoss.apply(counter, loss, *outputs)]  # type: ignore[no-untyped-call]
    known = loss_bytes(loss, 0)
    counter.charge(known.kept, known.workspace)
    return starts


def _run_with_loss(gm: GraphModule, inputs: Sequence[object], counter: LiveBytes) -> PlainStep:
    """Run a graph that returns a loss and the model's outputs; compare the bytes before and after the loss.

    A gradient hook of an output runs right before the model's backward pass does.
    """
    moments = counter.moments
    starts, ends = [0], [0]  # positions in moments; the last ones count
    loss, *rest = tree_leaves(_Eager(gm, lambda: starts.append(len(moments))).run(*inputs))
    outputs = [x for x in _differentiable(rest) if x is not loss]
    for x in outputs:
        x.register_hook(lambda _: ends.append(len(moments)))  # type: ignore[no-untyped-call]
    torch.autograd.backward([loss])
    gradients = sum(counter.bytes_of(x) for x in outputs)
    before = moments[starts[-1] - 1][0] + gradients
    lives = [live - before for live, _ in moments[starts[-1] : ends[-1]]]
    last = max(0, lives[-1]) if lives else 0
    model = _of_model(gm)
    pairs = zip(gm.graph.find_nodes(op="placeholder"), inputs, strict=True)
    targets = {x.untyped_storage() for n, x in pairs if isinstance(x, Tensor) and n not in model}
    found = LossBytes(
        kept=last + sum(storage.nbytes() for storage in targets),
        workspace=max([0, *lives]) - last,
        outputs=gradients,
    )
    return PlainStep(moments=moments, loss=found)


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
    return ancestors(rest)


class _OuterLoss(torch.autograd.Function):
    """A loss that is not known: its gradients have the layout of the model's outputs."""

    @staticmethod
    def forward(ctx: Any, counter: LiveBytes, loss: int | LossBytes | None, *outputs: Tensor) -> Tensor:
        ctx.counter, ctx.loss = counter, loss
        ctx.shapes = [(x.shape, x.stride(), x.dtype, x.device) for x in outputs]
        return outputs[0].new_empty(())

    @staticmethod
    def backward(ctx: Any, _gradient: Tensor) -> Any:
        made = [torch.empty_strided(s, t, dtype=d, device=v) for s, t, d, v in ctx.shapes]
        loss = loss_bytes(ctx.loss, sum(map(ctx.counter.bytes_of, made)))
        ctx.counter.charge(loss.kept, loss.workspace)
        return None, None, *made


def _twins(
    gm: GraphModule, values: Sequence[object], accumulates: bool
) -> tuple[list[object], dict[int, int]]:
    """Fake tensors with the layouts and shared storages of a graph's inputs; and the bytes of each storage.

    The graph's placeholders show which sizes may change; ``values`` show which gradients are held.
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
    sizes = {storage_id(x): rounded(x.nbytes(), x.device) for x in storages.values()}
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
    return [x for x in tensors_in(outputs) if x.requires_grad]


def checked_loss(found: object) -> Tensor:
    """The loss of a step, returned unchanged.

    Raises:
        UnsupportedModelError: unless it is a scalar tensor.
    """
    if not isinstance(found, Tensor) or found.dim():
        shape = (
            f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        )
        raise UnsupportedModelError(
            f"the loss is {shape}, must be a scalar tensor: let the model's forward return it, or let the "
            "factory return (model, example_inputs, loss), with loss a function of the model's output"
        )
    return found


def taken_as_real() -> AbstractContextManager[object]:
    """Make the library transformers take fake tensors for real ones, for which it builds fewer masks."""
    module = sys.modules.get("transformers.utils.import_utils")
    if not hasattr(module, "is_fake_tensor"):
        return nullcontext()
    return patch.object(module, "is_fake_tensor", lambda _: False)

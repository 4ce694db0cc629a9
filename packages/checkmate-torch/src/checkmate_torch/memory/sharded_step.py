"""The peak of a rank's training step under FSDP2: FSDP's own code runs on fake tensors, and sends nothing.

    M(t) = shards + optimizer state + batch + Σ live storages        one count for all that FSDP allocates

A *rehearsal* runs forward and backward pass of a sharded twin. FSDP gathers, frees, prefetches and scatters
in it as the installed release of PyTorch does, so that no rule of ours says what it holds. Modules
that follow a schedule are played: see :class:`Part`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from checkmate.report import Kind
from checkmate_torch.capture.target_kernels import RunsKernelsOfTarget
from checkmate_torch.memory.live_bytes import READS, LiveBytes
from checkmate_torch.memory.plain_step import starts_of_backward, taken_as_real
from checkmate_torch.ops.device import counts_as_cuda
from checkmate_torch.ops.storages import rounded, tensors_in
from checkmate_torch.private import (
    Communication,
    gathered_gradients,
    is_mutable,
    local_of,
    noted_values,
    on_resize,
    storage_id,
    tree_flatten,
    tree_unflatten,
    unfaked,
    without_reduction,
)
from checkmate_torch.tracing.loss_bytes import LossBytes

__all__ = ["Part", "RecordedCall", "Rehearsal", "ShardedPeak"]


_MADE = {torch.ops.aten.arange.default, torch.ops.aten.arange.start, torch.ops.aten.arange.start_step}
"""Ops that make whole numbers of no tensor."""
_VALUES = "_checkmate_values"
_MOST_VALUES = 2**20
"""The size of the largest tensor of whole numbers whose values are followed."""
_LATE_COPIES = 3
"""Copies of what gloo sends that are live at once after their collectives, at most: threads of its own free
them, and that many were seen on a busy machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A module's call under a schedule, as far as the rest of the step can see it.

    Attributes:
        forward: bytes that its forward pass needs at most besides its inputs.
        saved: bytes that it keeps for the backward pass besides inputs and outputs.
        backward: bytes that its backward pass needs at most besides what is held when it starts.
        backward_alone: the same where no other code holds the results that it reads, so that it frees them.
        inputs: of its tensors, by number, those that the backward pass reads; parameters are not counted.
        outputs: of its results, by number, those that the backward pass reads.
    """

    forward: int
    saved: int
    backward: int
    backward_alone: int
    inputs: frozenset[int]
    outputs: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedCall:
    """A call of a module in a rehearsal: layouts of what it got and gave; no tensor is held.

    Attributes:
        unit: number of the module.
        arguments: arguments and keyword arguments, with :class:`Layout` in the place of tensors.
        results: the same of the results, and their structure; :class:`Passed` where an argument is returned.
    """

    unit: int
    arguments: Any
    results: tuple[list[object], Any]

    @property
    def key(self) -> object:
        """Equal for calls whose arguments have the same layouts."""
        leaves, spec = tree_flatten(self.arguments)
        return self.unit, tuple(map(repr, leaves)), repr(spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The layout of a tensor, and of its storage: ``elements`` of its type; it begins at ``offset``."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    elements: int
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool

    @classmethod
    def of(cls, value: object) -> object:
        """The layout of a tensor; other values themselves."""
        if not isinstance(value, Tensor):
            return value
        return cls(
            shape=tuple(value.shape),
            stride=tuple(value.stride()),
            offset=int(value.storage_offset()),
            elements=value.untyped_storage().nbytes() // value.element_size(),
            dtype=value.dtype,
            device=value.device,
            requires_grad=value.requires_grad,
        )

    def empty(self) -> Tensor:
        """A new tensor of this layout."""
        whole = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)
        if whole.untyped_storage().nbytes() == self.elements * whole.element_size():
            return whole
        whole = torch.empty(self.elements, dtype=self.dtype, device=self.device)
        return whole.as_strided(self.shape, self.stride, self.offset)

    def gradient(self) -> Tensor:
        """A new gradient of such a tensor."""
        return torch.empty(self.shape, dtype=self.dtype, device=self.device)


@dataclass(frozen=True, slots=True)
class Passed:
    """An argument, by number, that a module returns as it is."""

    argument: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedPeak:
    """The memory of a rank's step.

    Attributes:
        peak: in bytes.
        by_kind: bytes of each kind at the peak, largest first; together they are ``peak``.
        moments: bytes that are live at most, if gloo's threads free the copies of what they send late: at
            each pass of a played call and between two of them. With each the recorded call, by its number;
            None = other code.
    """

    peak: int
    by_kind: dict[Kind, int]
    moments: Sequence[tuple[int | None, int]]

    @property
    def bound(self) -> int:
        """The largest of the moments."""
        return max(size for _, size in self.moments)


class Rehearsal:
    """Runs steps of a sharded twin on fake tensors.

    Args:
        twin: sharded, on fake tensors, with ``comm`` for its buffers.
        parts: the modules that follow schedules, by the numbers in their recorded calls.
        fixed: bytes that the step holds throughout, by kind.
        loss: from the model's output to a scalar, or as in
            :func:`~checkmate_torch.memory.plain_step.plain_step_of_graph`.

    Attributes:
        read: the tensors among the arguments, by number, whose values code has read.
    """

    def __init__(
        self,
        twin: nn.Module,
        parts: Sequence[nn.Module],
        fixed: Mapping[Kind, int],
        loss: Callable[[Any], Tensor] | int | LossBytes | None,
    ) -> None:
        self.comm = Communication(self._gathered, self._scattered, self._sent, self._kept)
        self._twin, self._parts, self._fixed, self._loss = twin, parts, dict(fixed), loss
        self._counter: _Counter | None = None
        self.read: frozenset[int] = frozenset()
        self._gradients: list[tuple[Any, str, Tensor]] = []

    def _gathered(self, buffer: Tensor) -> None:
        if self._counter is not None:
            self._counter.note(buffer, Kind.GATHER_BUFFERS)

    def _scattered(self, buffer: Tensor, is_result: bool) -> None:
        if self._counter is not None:
            self._counter.note(buffer, Kind.GRADIENTS if is_result else Kind.SCATTER_BUFFERS)

    def _sent(self, buffer: Tensor) -> None:
        """Gloo, on CPUs, copies what it sends, and threads of its own free the copies, sometimes late."""
        if self._counter is not None and buffer.device.type == "cpu" and not counts_as_cuda(buffer.device):
            self._counter.sends(buffer.nbytes)

    def _kept(self, shard: Tensor) -> None:
        if self._counter is not None:
            self._counter.note(shard, Kind.GATHERED_PARAMETERS)

    def record(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[RecordedCall]:
        """Run a step, and note the calls of the parts."""
        calls: list[RecordedCall] = []
        for k, x in enumerate(tree_flatten((args, kwargs))[0]):
            if isinstance(x, Tensor) and (real := noted_values(x)) is not None:
                setattr(x, _VALUES, _Known(real.detach().cpu(), frozenset([k])))

        def recording(k: int, forward: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any, **kwargs: Any) -> Any:
                results = forward(*args, **kwargs)
                given = tree_flatten((args, kwargs))[0]
                leaves, spec = tree_flatten(results)
                places = {id(x): Passed(n) for n, x in enumerate(given) if isinstance(x, Tensor)}
                layouts = [places.get(id(x), Layout.of(x)) for x in leaves]
                calls.append(
                    RecordedCall(unit=k, arguments=_layouts((args, kwargs)), results=(layouts, spec))
                )
                return results

            return run

        with _replaced(self._parts, recording):
            counter = _Counter([], {}, {})
            self._run(args, kwargs, counter)
        self.read = counter.read
        return calls

    def peak(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        played: Mapping[int, Part] | None = None,
        calls: Sequence[RecordedCall] = (),
        workspaces: Mapping[object, int] | None = None,
    ) -> ShardedPeak:
        """The peak of a step.

        Args:
            args: positional arguments of the model.
            kwargs: keyword arguments of the model.
            played: for recorded calls, by their numbers, what they need; others run as in plain PyTorch.
                None = all do.
            calls: as they were recorded.
            workspaces: bytes of the workspaces of ops, by their keys.
        """
        counter = _Counter(self._held(args, kwargs), self._fixed, workspaces or {})
        number = iter(range(len(calls)))

        def playing(k: int, forward: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any, **kwargs: Any) -> Any:
                n = next(number)
                if played is None or n not in played:
                    return forward(*args, **kwargs)
                return _play(counter, self._parts[k], (n, calls[n]), played[n], (args, kwargs))

            return run

        with _replaced(self._parts if played is not None else (), playing):
            self._run(args, kwargs, counter)
        return counter.found()

    def held(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[Kind, int]:
        """Bytes that are resident before the step, by kind."""
        return _Counter(self._held(args, kwargs), self._fixed, {}).found().by_kind

    def _held(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[Kind, Tensor]]:
        """What is resident before the step."""
        parameters = self._twin.parameters()
        gradients = [gradient for _, _, gradient in self._gradients]
        return [
            *((Kind.PARAMETERS, local_of(p)) for p in parameters),
            *((Kind.BUFFERS, b) for b in self._twin.buffers()),
            *((Kind.EARLIER_GRADIENTS, local_of(g)) for g in gradients),
            *((Kind.BATCH, x) for x in tensors_in((args, kwargs))),
        ]

    def hold(self, args: Sequence[Any], kwargs: Mapping[str, Any], *, reduced: bool) -> None:
        """Let all steps to come find the gradients of an earlier backward pass.

        ``reduced``: whether they are those of shards; else they wait for their reduction.
        """
        with nullcontext() if reduced else without_reduction(self._twin):
            self._step(args, kwargs, _Counter([], {}, {}))
        places = [(p, "grad") for p in self._twin.parameters() if p.grad is not None]
        places += gathered_gradients(self._twin)
        self._gradients += [(holder, name, getattr(holder, name)) for holder, name in places]
        self._drop_gradients()

    def _drop_gradients(self) -> None:
        for p in self._twin.parameters():
            p.grad = None
        for holder, name in gathered_gradients(self._twin):
            setattr(holder, name, None)

    def _restore_gradients(self) -> None:
        for holder, name, gradient in self._gradients:
            setattr(holder, name, gradient)

    def _run(self, args: Sequence[Any], kwargs: Mapping[str, Any], counter: _Counter) -> None:
        self._restore_gradients()
        try:
            self._step(args, kwargs, counter)
        finally:
            self._drop_gradients()

    def _step(self, args: Sequence[Any], kwargs: Mapping[str, Any], counter: _Counter) -> None:
        self._counter = counter
        try:
            with (
                torch.enable_grad(),
                taken_as_real(),
                RunsKernelsOfTarget(),
                on_resize(counter.resized),
                self.comm.without_all_reduce(),
                counter,
            ):
                output = self._twin(*args, **kwargs)
                if callable(self._loss):
                    starts = [self._loss(output)]
                    del output
                else:
                    outputs = [x for x in tensors_in(output) if x.requires_grad]
                    in_model = self._loss is None and any(not x.dim() for x in outputs[:1])
                    starts = starts_of_backward(outputs, 0 if in_model else self._loss, counter)
                counter.new_kind = Kind.ACTIVATION_GRADIENTS
                torch.autograd.backward(starts)
        finally:
            self._counter = None


def _layouts(values: Any) -> Any:
    leaves, spec = tree_flatten(values)
    return tree_unflatten([Layout.of(x) for x in leaves], spec)


@contextmanager
def _replaced(
    parts: Sequence[nn.Module], by: Callable[[int, Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Within the block, the ``forward`` of modules is what ``by`` makes of it."""
    try:
        for k, module in enumerate(parts):
            vars(module)["forward"] = by(k, module.forward)
        yield
    finally:
        for module in parts:
            vars(module).pop("forward", None)


class _Counter(LiveBytes):  # type: ignore[no-untyped-call]
    """Counts storages by kind, those too that FSDP frees and allocates by changing their sizes."""

    def __init__(
        self,
        held: Sequence[tuple[Kind, Tensor]],
        fixed: Mapping[Kind, int],
        workspaces: Mapping[object, int],
    ) -> None:
        self._counted: dict[int, tuple[int, Kind]] = {}
        self.new_kind = Kind.ACTIVATIONS
        self._by_kind = dict(fixed)
        self._peak, self._at_peak = -1, dict[Kind, int]()
        self._moments: list[tuple[int | None, int]] = [(None, 0)]
        self._sent: deque[int] = deque(maxlen=_LATE_COPIES)
        self._workspaces = workspaces
        self.read: frozenset[int] = frozenset()
        sizes: dict[int, int] = {}
        for kind, x in held:
            storage = x.untyped_storage()
            key = storage_id(storage)
            if key not in sizes:
                sizes[key] = size = rounded(storage.nbytes(), x.device)
                self._counted[key] = size, kind
                self._by_kind[kind] = self._by_kind.get(kind, 0) + size
        super().__init__(sizes, reads_ones=True)
        self.live += sum(fixed.values())
        self._compare(0)

    def __torch_dispatch__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> object:
        values = _values(func, args, kwargs or {})
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if values is not None and isinstance(result, Tensor):
            setattr(result, _VALUES, values)
        self._compare(self._workspaces.get(self.moments[-1][1], 0))
        return result

    def needs(self, size: int, kind: Kind, call: int) -> None:
        """Count ``size`` further bytes at this moment, for a pass of a recorded call."""
        self._moments.append((call, 0))
        self._compare(size, kind)
        self._moments.append((None, 0))

    def sends(self, size: int) -> None:
        """Count a copy of what is sent, which a thread of gloo frees now or later."""
        self._compare(size)
        self._sent.append(size)

    def charge(self, kept: int, workspace: int) -> None:
        """Count a loss whose ops were not seen."""
        super().charge(kept, workspace)
        self._by_kind[Kind.LOSS] = self._by_kind.get(Kind.LOSS, 0) + kept
        self._compare(workspace, Kind.LOSS)

    def note(self, x: Tensor, kind: Kind) -> None:
        """Count a new tensor as one of a kind."""
        self._note(storage_id(x.untyped_storage()), kind)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Count a storage with its new size: it is FSDP's, for gathered parameters."""
        key = storage_id(storage)
        if key not in self._sizes:
            self._track(storage, 0)
        self._note(key, Kind.GATHERED_PARAMETERS)
        self._resize(key, rounded(storage.nbytes(), storage.device))
        self._compare(0)

    def found(self) -> ShardedPeak:
        """The peak so far."""
        ordered = sorted(self._at_peak.items(), key=lambda item: -item[1])
        return ShardedPeak(
            peak=self._peak,
            by_kind={kind: size for kind, size in ordered if size},
            moments=self._moments,
        )

    def result_of(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
        """Run an op; a number of a tensor whose values are known is read from them."""
        if func in READS and (known := _known(args)) is not None:
            self.read |= known.of
            return func(*known.values, **kwargs)
        return super().result_of(func, args, kwargs)

    def changed(self, key: int, size: int) -> None:
        """Count the bytes by kind."""
        before, kind = self._counted.pop(key, (0, self.new_kind))
        self._by_kind[kind] = self._by_kind.get(kind, 0) + size - before
        if key in self._sizes:
            self._counted[key] = size, kind

    def _note(self, key: int, kind: Kind) -> None:
        if key in self._counted:
            size, known = self._counted[key]
            self._by_kind[known] -= size
            self._by_kind[kind] = self._by_kind.get(kind, 0) + size
            self._counted[key] = size, kind

    def _compare(self, more: int, kind: Kind = Kind.WORKSPACE) -> None:
        if self.live + more > self._peak:
            kinds = dict(self._by_kind)
            kinds[kind] = kinds.get(kind, 0) + more
            self._peak, self._at_peak = self.live + more, kinds
        call, most = self._moments[-1]
        self._moments[-1] = call, max(most, self.live + more + sum(self._sent))


class _Known(NamedTuple):
    """Values of whole numbers, and the arguments of the step, by number, that they depend on."""

    values: Any
    of: frozenset[int]


def _values(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Known | None:
    """The result of an op on whole numbers whose values are known, such as padding masks and positions.

    Code reads such numbers to choose a way, and the rehearsal must take the same one.
    """
    if func in READS or is_mutable(func) or tensors_in(kwargs):
        return None
    known = _known(args)
    if known is None or not (tensors_in(known.values) or func in _MADE):
        return None
    with unfaked():
        result = func(*known.values, **kwargs)
    if not isinstance(result, Tensor) or result.numel() > _MOST_VALUES or result.is_floating_point():
        return None
    return _Known(result, known.of)


def _known(args: Sequence[Any]) -> _Known | None:
    """The arguments of an op with the values of their tensors; None if some are not known."""
    if any(tensors_in(x) for x in args if isinstance(x, list | tuple)):
        return None
    found = [getattr(x, _VALUES, None) if isinstance(x, Tensor) else _Known(x, frozenset()) for x in args]
    if None in found:
        return None
    known = [x for x in found if x is not None]
    return _Known([x.values for x in known], frozenset().union(*(x.of for x in known)))


def _play(
    counter: _Counter, module: nn.Module, numbered: tuple[int, RecordedCall], part: Part, given: Any
) -> Any:
    """A call of a module under a schedule: allocates what the schedule holds between its two passes."""
    leaves = tree_flatten(given)[0]
    tensors = [x for x in leaves if isinstance(x, Tensor)]
    trained = [p for p in module.parameters() if p.requires_grad]
    n, call = numbered
    layouts, spec = call.results
    made = [x for x in layouts if isinstance(x, Layout)]
    results = iter(_Played.apply(counter, n, part, made, len(tensors), *tensors, *trained))  # type: ignore[no-untyped-call]
    values = [
        next(results) if isinstance(x, Layout) else leaves[x.argument] if isinstance(x, Passed) else x
        for x in layouts
    ]
    return tree_unflatten(values, spec)


class _Played(torch.autograd.Function):
    """Forward and backward pass of a part: as planned code does, it lets go of what it has read."""

    boxed_grads_call = True  # incoming gradients come in a list; PyTorch before 2.13 keeps them

    @staticmethod
    def forward(
        ctx: Any,
        counter: _Counter,
        call: int,
        part: Part,
        made: Sequence[Layout],
        n_inputs: int,
        *tensors: Tensor,
    ) -> Any:
        counter.needs(part.forward, Kind.ACTIVATIONS, call)
        results = tuple(layout.empty() for layout in made)
        ctx.counter, ctx.part, ctx.call = counter, part, call
        ctx.saved = torch.empty(part.saved, dtype=torch.uint8, device=tensors[0].device)
        ctx.read = [x.detach() for k, x in enumerate(tensors[:n_inputs]) if k in part.inputs]
        ctx.made = [x.detach() for k, x in enumerate(results) if k in part.outputs]
        ctx.layouts = [Layout.of(x) for x in tensors]
        ctx.n_inputs = n_inputs
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(
            *(x for x, layout in zip(results, made, strict=True) if not layout.requires_grad)
        )
        return results

    @staticmethod
    def backward(ctx: Any, *incoming: Any) -> Any:
        counter, part = ctx.counter, ctx.part
        made = sum({storage_id(x.untyped_storage()): counter.bytes_of(x) for x in ctx.made}.values())
        before, ctx.made = counter.live, None
        freed = before - counter.live
        needed = part.backward if freed < made else part.backward_alone
        counter.needs(freed + needed, Kind.ACTIVATION_GRADIENTS, ctx.call)
        ctx.saved = ctx.read = None
        if incoming and isinstance(incoming[0], list):
            incoming[0].clear()
        gradients = [layout.gradient() if layout.requires_grad else None for layout in ctx.layouts]
        for gradient in gradients[ctx.n_inputs :]:
            if gradient is not None:
                counter.note(gradient, Kind.GATHERED_GRADIENTS)
        return (None, None, None, None, None, *gradients)

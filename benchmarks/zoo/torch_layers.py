"""The layers of a PyTorch network: its forward pass on fake tensors, recorded call by call.

A layer is a call of a module without modules inside, or of a function outside of such a module. Its
backward reads the inputs and the output that autograd keeps, with a few exceptions (:data:`_KEEPS`). A call
that makes no storage of its own, a view or an activation in place, is part of the layer that made it. Tensors
without gradients (positions, masks) count as constants.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from zoo.layers import Layer, Read

__all__ = ["recorded"]

_KEEPS: dict[object, tuple[bool, bool]] = {
    nn.MaxPool2d: (True, True),  # the indices, which PyTorch keeps instead, are 8 bytes for each element made
    nn.AvgPool2d: (False, False),  # PyTorch keeps its input only for the shape
    nn.ReLU6: (False, True),  # PyTorch keeps its input, though its output would do
    nn.Dropout: (False, True),  # in place of a mask
    functional.scaled_dot_product_attention: (True, True),  # like the fused kernels of GPUs
}
"""Whether backward reads inputs and output, where that differs from the tensors that autograd keeps."""

_FLOPS = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: (
        lambda query, key, value, *_, **__: sdpa_flop_count(query, key, value)
    )
}
"""FLOPs of calls that PyTorch does not count."""

_SUMS = (torch.Tensor.add, torch.add, torch.Tensor.__add__, torch.Tensor.__radd__)
"""Calls whose gradient passes unchanged."""


def recorded(model: nn.Module, *inputs: Tensor) -> tuple[list[Layer], str]:
    """The layers of a model in execution order, and the name of the one that makes its output.

    Args:
        model: on fake tensors, as its inputs; returns a tensor.
        inputs: the batch; together they are the graph input ``x``.
    """
    recorder = _Recorder(model, inputs)
    with recorder.listening():
        made = model(*inputs)
    return [draft.layer(name) for name, draft in recorder.layers.items()], recorder.makers[_key(made)]


@dataclass(slots=True, kw_only=True)
class _Draft:
    """A layer that later calls in place may extend; its reads by source, and those that backward keeps."""

    size: int
    flops: float
    weights: bool
    product: bool
    kept: bool
    passes_gradient: bool
    reads: dict[str, int]
    reads_kept: set[str]

    def layer(self, name: str) -> Layer:
        reads = (
            Read(source=source, size=size, kept=source in self.reads_kept)
            for source, size in self.reads.items()
        )
        return Layer(
            name=name,
            reads=tuple(reads),
            size=self.size,
            flops=self.flops,
            weights=self.weights,
            product=self.product,
            kept=self.kept,
            passes_gradient=self.passes_gradient,
        )


class _Recorder(TorchFunctionMode):
    """Records the layer that made each storage."""

    def __init__(self, model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        super().__init__()
        self.layers: dict[str, _Draft] = {}
        self.makers: dict[int, str] = {_key(tensor): "x" for tensor in inputs}
        self.names = {id(module): name for name, module in model.named_modules()}
        self.parameters = {_key(parameter) for parameter in model.parameters()}
        self.alive: list[object] = []  # a storage's address is unique while it lives
        self.inside = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Record a call."""
        call = nn.Module.__call__

        def called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self.inside or next(module.children(), None) is not None:
                return call(module, *args, **kwargs)
            if isinstance(module, nn.Dropout) and not module.p:
                return args[0]
            name = self.names.get(id(module), type(module).__name__)
            read = (args, kwargs, list(module.parameters()))
            return self._layer(name, type(module), lambda: call(module, *args, **kwargs), read)

        with patch.object(nn.Module, "__call__", called), self:
            yield

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.inside:
            return function(*args, **kwargs)
        name = (resolve_name(function) or function.__name__).rpartition(".")[2].strip("_")
        return self._layer(name, function, lambda: function(*args, **kwargs), (args, kwargs))

    def _layer(self, name: str, kind: object, run: Callable[[], Any], arguments: Any) -> Any:
        """Run a call and record its layer."""
        read = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)]
        versions = [tensor._version for tensor in read]
        kept: set[int] = set()

        def keep(tensor: Tensor) -> Tensor:
            kept.add(_key(tensor))
            self.alive.append(tensor)
            return tensor

        self.inside = True
        try:
            counter = FlopCounterMode(display=False, custom_mapping=_FLOPS)
            with counter, saved_tensors_hooks(keep, lambda x: x):
                result = run()
        finally:
            self.inside = False
        self.alive += [leaf for leaf in tree_leaves((result, arguments)) if isinstance(leaf, Tensor)]
        known = self.makers.keys() | self.parameters
        made = {_key(leaf): leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)}
        fresh = {key: tensor for key, tensor in made.items() if tensor.requires_grad and key not in known}
        if fresh:
            self._new(name, kind, read, fresh, kept, counter.get_total_flops())
        for tensor, version in zip(read, versions, strict=True):
            if tensor._version > version and _key(tensor) in self.makers:
                layer = self.layers[self.makers[_key(tensor)]]
                layer.flops += tensor.numel()
                layer.kept |= _key(tensor) in kept
        return result

    def _new(
        self,
        name: str,
        kind: object,
        read: list[Tensor],
        made: dict[int, Tensor],
        kept: set[int],
        flops: int,
    ) -> None:
        sources: dict[str, int] = {}
        for tensor in read:
            source = self.makers.get(_key(tensor))
            if source is not None:  # several views together are at most the whole
                size = sources.get(source, 0) + tensor.numel() * tensor.element_size()
                sources[source] = min(size, tensor.untyped_storage().nbytes())
        sources_kept, keeps_output = {self.makers.get(key) for key in kept}, not kept.isdisjoint(made)
        if kind in _KEEPS:
            keeps_inputs, keeps_output = _KEEPS[kind]
            sources_kept = set(sources) if keeps_inputs else set()
        weights = any(_key(tensor) in self.parameters for tensor in read)
        name = next(each for each in _numbered(name) if each not in self.layers)
        self.layers[name] = _Draft(
            size=sum(tensor.untyped_storage().nbytes() for tensor in made.values()),
            flops=flops or sum(tensor.numel() for tensor in made.values()),
            weights=weights,
            product=flops > 0 and not weights,
            kept=keeps_output,
            passes_gradient=kind in _SUMS,
            reads=sources,
            reads_kept=sources_kept & set(sources),
        )
        self.makers |= dict.fromkeys(made, name)


def _numbered(name: str) -> Iterator[str]:
    """The name, made unique by a number."""
    yield name
    for number in itertools.count(2):
        yield f"{name}_{number}"


def _key(tensor: Tensor) -> int:
    """A key that is unique among living storages."""
    return tensor.untyped_storage()._cdata

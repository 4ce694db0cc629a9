"""The networks in PyTorch, built, run layer by layer, and traced on fake tensors, which have no memory."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

import checkmate_torch
from checkmate import DFGraph
from zoo.layers import training_graph
from zoo.torch_layers import recorded
from zoo.torch_nets import NETS, SEGMENTING

__all__ = ["layers", "ops", "parameter_count"]


def layers(name: str, *, batch: int, small: bool) -> DFGraph:
    """One op for each layer; see :mod:`zoo.layers`."""
    with FakeTensorMode():
        step = _step(name, batch, small)
        found, output = recorded(step.model, step.inputs)
    return training_graph(
        f"{name} layers, torch, batch {batch}",
        found,
        inputs={"x": _bytes(step.inputs)},
        output=output,
        parameter_bytes=sum(map(_bytes, step.model.parameters())),
    )


def ops(name: str, *, batch: int, small: bool) -> DFGraph:
    """Forward, loss and backward as PyTorch traces them, on fake tensors."""
    with FakeTensorMode():
        step = _step(name, batch, small)
    traced = checkmate_torch.trace(
        _WithLoss(step.model), (step.inputs, step.targets), loss_bytes=0, cost_model="flops"
    )
    return dataclasses.replace(traced.graph, name=f"{name} ops, torch, batch {batch}")


def parameter_count(name: str, *, small: bool) -> int:
    """The number of trained parameters, shared ones counted once."""
    with FakeTensorMode():
        return sum(parameter.numel() for parameter in _step(name, 1, small).model.parameters())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Step:
    """A network that returns logits with the classes in the second dimension, and a batch for it."""

    model: nn.Module
    inputs: Tensor
    targets: Tensor


def _step(name: str, batch: int, small: bool) -> _Step:
    if name in NETS:
        model, inputs, targets = _images(name, batch, small)
    else:
        from zoo.torch_transformers import TRANSFORMERS

        model, inputs, targets = TRANSFORMERS[name](batch, small)
    return _Step(model=model.train(), inputs=inputs, targets=targets)


def _images(name: str, batch: int, small: bool) -> tuple[nn.Module, Tensor, Tensor]:
    model = NETS[name](small)
    if name not in SEGMENTING:
        side = 32 if small else 224
        return model, torch.empty(batch, 3, side, side), torch.empty(batch, dtype=torch.long)
    high, wide = (64, 64) if small else (416, 608)
    scale = SEGMENTING[name]
    targets = torch.empty(batch, high // scale, wide // scale, dtype=torch.long)
    return model, torch.empty(batch, 3, high, wide), targets


class _WithLoss(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(self.model(inputs), targets)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()

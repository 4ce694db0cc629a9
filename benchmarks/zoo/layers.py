"""The training step of a network, layer by layer, as in the Checkmate paper, but with exact gradient sizes.

    forward of layer v:    reads the outputs of the layers before it, makes its output
    loss:                  reads the network's output, makes the loss and the gradient of that output
    backward of layer v:   reads the gradients of v's output, one from each reader of it, and those of
                           v's inputs and output that it needs; makes the gradients of inputs that layers made

Backward runs in the opposite order. A tensor that several layers read has one gradient for each; the backward
op of its maker adds them up while it reads them. A sum passes one and the same gradient to all its operands.

*Bytes.* Outputs and their gradients count, in float32. Other results of a layer (indices of a pooling,
statistics of a norm, masks of dropout) are not counted, as in the paper; at the op level they are. Parameters
and their gradients are the ``fixed_size``, 2 × their bytes, once for every solver. A backward op without
another result makes a tensor of zero bytes, so that it must run.

No layers of their own: views, activations in place or fused, padding with zeros before a convolution.

*FLOPs.* 2 for each multiplication and addition of products and convolutions; any other layer costs one for
each element of its output. Backward costs twice the forward pass for layers with weights and for products of
two activations (a gradient for each factor), else the same as forward. The loss costs one for each element
that it reads.

(The original reads input and output in every backward op, and gives the gradient the size of the layer's
*output*: Jain et al., MLSys 2020, section 4.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from checkmate import DFGraph, GraphBuilder

__all__ = ["Layer", "Read", "training_graph"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """An input of a layer.

    Attributes:
        source: the layer that made it, or the graph's input.
        size: bytes that are read: the whole output, or a part of it.
        kept: whether backward reads it, too.
    """

    source: str
    size: int
    kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer of a network, as training uses it.

    Attributes:
        name: of the layer.
        reads: its inputs, without parameters.
        size: bytes of its output.
        flops: of its forward pass.
        weights: whether it has weights, whose gradients its backward makes.
        product: whether it multiplies activations with each other.
        kept: whether its backward reads its output.
        passes_gradient: whether the gradients of its inputs are all the same tensor.
    """

    name: str
    reads: tuple[Read, ...]
    size: int
    flops: float
    weights: bool
    product: bool
    kept: bool
    passes_gradient: bool = False


def training_graph(
    name: str, layers: Sequence[Layer], *, inputs: dict[str, int], output: str, parameter_bytes: int
) -> DFGraph:
    """The training step as a graph.

    Args:
        name: of the graph.
        layers: in execution order; layers that the output doesn't depend on are left out.
        inputs: bytes of the batch, by the name of the input.
        output: the layer that makes the network's output.
        parameter_bytes: of all parameters, each once.
    """
    layers = _needed(layers, output)
    builder = GraphBuilder(name, cost_unit="flop", fixed_size=2 * parameter_bytes)
    for source, size in inputs.items():
        builder.input(source, size)
    for layer in layers:
        reads = [read.source for read in layer.reads]
        builder.op(layer.name, reads=reads, makes={layer.name: layer.size}, cost=layer.flops)
    size = next(layer.size for layer in layers if layer.name == output)
    gradient = f"loss, to {output}"
    builder.op("loss", reads=[output], makes={"loss": 4, gradient: size}, cost=size / 4)
    gradients: dict[str, list[str]] = {layer.name: [] for layer in layers} | {output: [gradient]}
    builder.output("loss")
    for layer in reversed(layers):
        _backward(builder, layer, gradients)
    return builder.build()


def _backward(builder: GraphBuilder, layer: Layer, gradients: dict[str, list[str]]) -> None:
    """Add the backward op of a layer, and pass its gradients on."""
    reads = list(gradients[layer.name])
    reads += [read.source for read in layer.reads if read.kept]
    if layer.kept:
        reads.append(layer.name)
    inner = [read for read in layer.reads if read.source in gradients]
    if layer.passes_gradient and all(read.size == layer.size for read in inner):
        names = [f"{layer.name}, back"] * len(inner)
    else:
        names = [f"{layer.name}, to {read.source}" for read in inner]
    made = {name: read.size for name, read in zip(names, inner, strict=True)}
    for name, read in zip(names, inner, strict=True):
        gradients[read.source].append(name)
    if layer.weights:
        made[f"{layer.name}, done"] = 0
        builder.output(f"{layer.name}, done")
    cost = (2 if layer.weights or layer.product else 1) * layer.flops
    builder.op(f"{layer.name}, back", reads=reads, makes=made, cost=cost, backward=True)


def _needed(layers: Sequence[Layer], output: str) -> list[Layer]:
    """The layers that the output depends on, in order."""
    wanted = {output}
    for layer in reversed(layers):
        if layer.name in wanted:
            wanted.update(read.source for read in layer.reads)
    return [layer for layer in layers if layer.name in wanted]

"""The training step of a network, layer by layer: the graph of the Checkmate paper, with honest gradients.

    forward of layer v:    reads the outputs of the layers before it, makes its output
    loss:                  reads the network's output, makes the loss and the gradient of that output
    backward of layer v:   reads the gradients of v's output, one from each reader of it, and what it needs of
                           v's inputs and output; makes the gradient of each input that a layer made

Backward runs in the opposite order. A tensor that several layers read has one gradient for each; the backward
op of its maker adds them up while it reads them. A sum passes one and the same gradient to all its operands.

*Bytes.* Of outputs and of their gradients, in float32. What a layer makes besides (indices of a pooling,
statistics of a norm, masks of dropout) is not counted, as in the paper; at the op level it is. Parameters and
their gradients are the ``fixed_size``, 2 × their bytes, once, whoever solves; what layers have for a backward
op without another result is a tensor of no bytes, so that it must run.

What is no layer of its own: a view, an activation in place or fused, padding with zeros before a convolution.

*FLOPs.* 2 for each multiplication and addition of products and convolutions; of any other layer one for each
element that it makes. Backward costs twice as much for what has weights or is a product of two activations
(a gradient for each factor), else as much as forward. The loss is one for each element that it reads.

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
        size: bytes of what is read: of the whole output, or of a part of it.
        kept: backward reads it, too.
    """

    source: str
    size: int
    kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer of a network, as its training needs it.

    Attributes:
        name: its own.
        reads: its inputs, without parameters.
        size: bytes of its output.
        flops: of its forward pass.
        weights: it has some, whose gradients its backward makes.
        product: it multiplies activations with each other.
        kept: its backward reads its output.
        passes_gradient: the gradients of its inputs are all the same tensor.
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
    """The step.

    Args:
        name: of the graph.
        layers: in execution order; what the output doesn't depend on is left out.
        inputs: bytes of what stands in for the batch, by name.
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
    """Add the backward op of a layer, and hand its gradients on."""
    reads = list(gradients[layer.name])
    reads += [read.source for read in layer.reads if read.kept]
    if layer.kept:
        reads.append(layer.name)
    inner = [read for read in layer.reads if read.source in gradients]
    if layer.passes_gradient and all(read.size == layer.size for read in inner):
        made = dict.fromkeys((f"{layer.name}, back",), layer.size) if inner else {}
        for read in inner:
            gradients[read.source] += made
    else:
        made = {f"{layer.name}, to {read.source}": read.size for read in inner}
        for read, gradient in zip(inner, made, strict=True):
            gradients[read.source].append(gradient)
    if layer.weights:
        made[f"{layer.name}, done"] = 0
        builder.output(f"{layer.name}, done")
    cost = (2 if layer.weights or layer.product else 1) * layer.flops
    builder.op(f"{layer.name}, back", reads=reads, makes=made, cost=cost, backward=True)


def _needed(layers: Sequence[Layer], output: str) -> list[Layer]:
    """Those that the output depends on, in order."""
    wanted = {output}
    for layer in reversed(layers):
        if layer.name in wanted:
            wanted.update(read.source for read in layer.reads)
    return [layer for layer in layers if layer.name in wanted]

"""The layers of a functional Keras model, with the rules by which its backward pass reads them.

A layer without values of its own (reshaping, and padding with zeros, which kernels do) is part of its reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any, NamedTuple

import keras
from keras import layers

from zoo.layers import Layer, Read

__all__ = ["listed"]


class _Rule(NamedTuple):
    """Whether backward reads inputs and output; FLOPs, unless it is one for each element of the output."""

    inputs: bool
    output: bool
    flops: Callable[[Any, int], float] = lambda _, made: made


def _transposed(layer: Any, made: int) -> float:
    """The same products as the convolution that it transposes."""
    scale = prod(layer.strides)
    return 2 * made // scale * prod(layer.kernel.shape[:2]) * layer.kernel.shape[3]


_RULES: dict[type[layers.Layer], _Rule] = {
    layers.Conv2D: _Rule(True, False, lambda layer, made: 2 * made * prod(layer.kernel.shape[:-1])),
    layers.DepthwiseConv2D: _Rule(True, False, lambda layer, made: 2 * made * prod(layer.kernel.shape[:2])),
    layers.Conv2DTranspose: _Rule(True, False, _transposed),
    layers.Dense: _Rule(True, False, lambda layer, made: 2 * made * layer.kernel.shape[0]),
    layers.BatchNormalization: _Rule(True, False),
    layers.Activation: _Rule(False, True),
    layers.ReLU: _Rule(False, True),
    layers.Dropout: _Rule(False, True),
    layers.MaxPooling2D: _Rule(True, True),
    layers.AveragePooling2D: _Rule(False, False),
    layers.GlobalAveragePooling2D: _Rule(False, False),
    layers.UpSampling2D: _Rule(False, False),
    layers.Concatenate: _Rule(False, False),
    layers.Add: _Rule(False, False),
}
_FOLDED = (layers.Flatten, layers.Reshape, layers.ZeroPadding2D)


def listed(model: keras.Model, batch: int) -> tuple[list[Layer], str]:
    """The layers of a model in execution order, and the name of the one that makes its output.

    Args:
        model: functional, with one input, that is the graph input ``x``, and one output.
        batch: examples.

    Raises:
        KeyError: at a layer that has no rule here.
    """
    makers: dict[str, str] = {}  # by layer: itself, or the layer whose output it only views
    sizes: dict[str, int] = {}
    found = []
    for layer in model.layers:
        sources = list(_sources(layer))
        if isinstance(layer, layers.InputLayer):
            makers[layer.name], sizes["x"] = "x", 4 * batch * prod(layer.output.shape[1:])
        elif isinstance(layer, _FOLDED) or _is_linear(layer):
            makers[layer.name] = makers[sources[0]]
        else:
            made = batch * prod(layer.output.shape[1:])
            makers[layer.name], sizes[layer.name] = layer.name, 4 * made
            found.append(_layer(layer, made, [(makers[source], sizes[makers[source]]) for source in sources]))
    return found, makers[model.layers[-1].name]


def _layer(layer: Any, made: int, reads: list[tuple[str, int]]) -> Layer:
    rule = _RULES[type(layer)]
    weighted = bool(layer.trainable_weights)
    activated = weighted and getattr(layer, "activation", None) not in (None, keras.activations.linear)
    return Layer(
        name=layer.name,
        reads=tuple(Read(source=source, size=size, kept=rule.inputs) for source, size in reads),
        size=4 * made,
        flops=rule.flops(layer, made) + (made if activated else 0),
        weights=weighted,
        product=False,
        kept=rule.output or activated,
        passes_gradient=isinstance(layer, layers.Add),
    )


def _is_linear(layer: Any) -> bool:
    return isinstance(layer, layers.Activation) and layer.activation is keras.activations.linear


def _sources(layer: Any) -> Iterator[str]:
    """The layers whose outputs a layer reads."""
    for node in layer._inbound_nodes[:1]:
        for tensor in node.input_tensors:
            yield tensor._keras_history.operation.name

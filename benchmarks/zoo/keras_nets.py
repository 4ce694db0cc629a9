"""The paper's networks in Keras: those of ``keras.applications``, and three segmentations of our own.

``small`` applications take images of 32×32, and MobileNet a quarter of the channels; small segmentations are
as in :mod:`zoo.torch_nets`. ``side`` is the side of a square image, in place of the usual size. All end in
logits.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import keras
from keras import layers

__all__ = ["NETS", "SEGMENTING", "in_blocks"]

_SEGMENTS = 19


def unet(small: bool, side: int | None = None) -> keras.Model:
    """Up from the fourth pooling, over skips from the three before."""
    inputs, skips, width = _encoded(4, small, side)
    x = _refined(skips.pop(), 8 * width)
    for after in (4 * width, 2 * width, width):
        x = _refined(layers.Concatenate()([layers.UpSampling2D(2)(x), skips.pop()]), after)
    return keras.Model(inputs, _conv(_SEGMENTS)(x))


def fcn8(small: bool, side: int | None = None) -> keras.Model:
    """Scores of the last three poolings."""
    inputs, (*_, third, fourth, x), _ = _encoded(5, small, side)
    hidden = 32 if small else 4096
    for size in (7, 1):
        x = layers.Dropout(0.5)(_conv(hidden, size, activation="relu")(x))
    x = _up(4, 2)(_conv(_SEGMENTS, 1)(x))
    x = _up(4, 2)(layers.Add()([x, _conv(_SEGMENTS, 1)(fourth)]))
    x = _up(16, 8)(layers.Add()([x, _conv(_SEGMENTS, 1)(third)]))
    return keras.Model(inputs, x)


def segnet(small: bool, side: int | None = None) -> keras.Model:
    """Up from the fourth pooling."""
    inputs, (*_, x), width = _encoded(4, small, side)
    x = _refined(x, 8 * width)
    for after in (4 * width, 2 * width, width):
        x = _refined(layers.UpSampling2D(2)(x), after)
    return keras.Model(inputs, _conv(_SEGMENTS)(x))


def _application(name: str, **if_small: Any) -> Callable[..., keras.Model]:
    def made(small: bool, side: int | None = None) -> keras.Model:
        side, options = side or (32 if small else 224), if_small if small else {}
        build = getattr(keras.applications, name)
        return build(weights=None, input_shape=(side, side, 3), classifier_activation=None, **options)

    return made


NETS: dict[str, Callable[..., keras.Model]] = {
    "vgg16": _application("VGG16"),
    "vgg19": _application("VGG19"),
    "mobilenet": _application("MobileNet", alpha=0.25),
    "resnet50": _application("ResNet50"),
    "densenet121": _application("DenseNet121"),
    "unet": unet,
    "fcn8": fcn8,
    "segnet": segnet,
}
"""By name; the arguments are ``small`` and, optionally, ``side``."""

SEGMENTING = ("unet", "fcn8", "segnet")
"""Networks that predict a class for each pixel."""


_ENDS = re.compile(r"pool|^batch_normalization|^conv_pw_\d+_relu$|^conv1_relu$|_out$")
"""Names of the layers that end a block of one of the paper's six networks."""


def in_blocks(model: keras.Model, wrap: Callable[[keras.Model], keras.Model]) -> keras.Model:
    """The same layers, each block wrapped; what comes after the last block is not.

    Blocks are the stages of an encoder or a decoder, MobileNet's pairs of convolutions, ResNet's bottlenecks.

    Args:
        model: one of the paper's six networks, not small.
        wrap: maps a block, which may have several inputs and outputs, to its replacement.
    """
    chain = model.layers
    ends = [k for k, layer in enumerate(chain) if _ENDS.search(layer.name)]
    inputs = keras.Input(model.input_shape[1:])
    made = {id(model.inputs[0]): inputs}
    for first, last in pairwise([0, *ends, len(chain) - 1]):
        inside, after = chain[first + 1 : last + 1], chain[last + 1 :]
        own = {id(layer.output) for layer in inside}
        read = {id(x): x for layer in inside for x in _inputs(layer) if id(x) not in own}
        later = {id(x) for layer in after for x in _inputs(layer)} | {id(model.outputs[0])}
        kept = [layer.output for layer in inside if id(layer.output) in later]
        block = keras.Model([*read.values()], kept)
        results = (wrap(block) if after else block)([made[one] for one in read])
        made |= zip(map(id, kept), results, strict=True)
    return keras.Model(inputs, made[id(model.outputs[0])])


def _inputs(layer: keras.Layer) -> list[Any]:
    found = layer.input
    return list(found) if isinstance(found, list | tuple) else [found]


def _encoded(stages: int, small: bool, side: int | None) -> tuple[Any, list[Any], int]:
    """Input, outputs of the first stages of VGG16, and the width of the first."""
    width = 4 if small else 64
    high, wide = (side, side) if side else (64, 64) if small else (416, 608)
    inputs = x = keras.Input((high, wide, 3))
    made = []
    for count, factor in ((2, 1), (2, 2), (3, 4), (3, 8), (3, 8))[:stages]:
        for _ in range(count):
            x = _conv(factor * width, activation="relu")(x)
        x = layers.MaxPooling2D(2)(x)
        made.append(x)
    return inputs, made, width


def _refined(x: Any, channels: int) -> Any:
    """The layers after each scaling of a decoder."""
    return layers.BatchNormalization()(_conv(channels, activation="relu")(x))


def _conv(channels: int, size: int = 3, activation: str | None = None) -> layers.Layer:
    return layers.Conv2D(channels, size, padding="same", activation=activation)


def _up(size: int, factor: int) -> layers.Layer:
    return layers.Conv2DTranspose(_SEGMENTS, size, strides=factor, padding="same", use_bias=False)

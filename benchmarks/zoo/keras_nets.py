"""The paper's networks in Keras: those of ``keras.applications``, and three segmentations of our own.

``small`` applications take images of 32×32, and MobileNet a quarter of the channels; small segmentations are
those of :mod:`zoo.torch_nets`. All end in logits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import layers

__all__ = ["NETS", "SEGMENTING"]

_SEGMENTS = 19


def unet(small: bool) -> keras.Model:
    """Up from the fourth pooling, over skips from the three before."""
    inputs, skips, width = _encoded(4, small)
    x = _refined(skips.pop(), 8 * width)
    for after in (4 * width, 2 * width, width):
        x = _refined(layers.Concatenate()([layers.UpSampling2D(2)(x), skips.pop()]), after)
    return keras.Model(inputs, _conv(_SEGMENTS)(x))


def fcn8(small: bool) -> keras.Model:
    """Scores of the last three poolings."""
    inputs, (*_, third, fourth, x), _ = _encoded(5, small)
    hidden = 32 if small else 4096
    for size in (7, 1):
        x = layers.Dropout(0.5)(_conv(hidden, size, activation="relu")(x))
    x = _up(4, 2)(_conv(_SEGMENTS, 1)(x))
    x = _up(4, 2)(layers.Add()([x, _conv(_SEGMENTS, 1)(fourth)]))
    x = _up(16, 8)(layers.Add()([x, _conv(_SEGMENTS, 1)(third)]))
    return keras.Model(inputs, x)


def segnet(small: bool) -> keras.Model:
    """Up from the fourth pooling."""
    inputs, (*_, x), width = _encoded(4, small)
    x = _refined(x, 8 * width)
    for after in (4 * width, 2 * width, width):
        x = _refined(layers.UpSampling2D(2)(x), after)
    return keras.Model(inputs, _conv(_SEGMENTS)(x))


def _application(name: str, **if_small: Any) -> Callable[[bool], keras.Model]:
    def made(small: bool) -> keras.Model:
        side, options = (32, if_small) if small else (224, {})
        build = getattr(keras.applications, name)
        return build(weights=None, input_shape=(side, side, 3), classifier_activation=None, **options)

    return made


NETS: dict[str, Callable[[bool], keras.Model]] = {
    "vgg16": _application("VGG16"),
    "vgg19": _application("VGG19"),
    "mobilenet": _application("MobileNet", alpha=0.25),
    "resnet50": _application("ResNet50"),
    "densenet121": _application("DenseNet121"),
    "unet": unet,
    "fcn8": fcn8,
    "segnet": segnet,
}
"""By name; the argument is ``small``."""

SEGMENTING = ("unet", "fcn8", "segnet")
"""Networks that predict a class for each pixel."""


def _encoded(stages: int, small: bool) -> tuple[Any, list[Any], int]:
    """Input, outputs of the first stages of VGG16, and the width of the first."""
    width = 4 if small else 64
    inputs = x = keras.Input((64, 64, 3) if small else (416, 608, 3))
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

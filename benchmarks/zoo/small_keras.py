"""Keras networks with random weights, which tests and benchmarks train: six kinds of dependency graph.

A chain (:func:`vgg`), residuals with batch norm (:func:`resnet`), dense connections (:func:`densenet`),
depthwise convolutions and gates (:func:`efficientnet`), long skip connections (:func:`unet`), attention with
dropout (:func:`transformer`). They are small: a step takes a fraction of a second on one core.
:func:`application` makes the networks of ``keras.applications``.

``wrap`` is applied to each block, such as ``tf.recompute_grad`` for comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import keras
import tensorflow as tf
from keras import layers

__all__ = [
    "CASES",
    "Case",
    "Wrap",
    "application",
    "cut",
    "densenet",
    "efficientnet",
    "in_blocks",
    "resnet",
    "transformer",
    "unet",
    "vgg",
]

Wrap = Callable[[keras.layers.Layer], keras.layers.Layer]
"""Maps a block to its replacement."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Case:
    """A network, its loss and optimizer, and a batch: ``case.step(*case.batch)`` trains.

    Attributes:
        name: of the network.
        model: with seeded random weights; returns logits.
        optimizer: Adam, its slots made.
        batch: random inputs, and labels.
    """

    name: str
    model: keras.Model
    optimizer: keras.optimizers.Optimizer
    batch: tuple[tf.Tensor, tf.Tensor]

    def step(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        """Train one step, and return the loss, the mean cross entropy of the labels.

        A function for ``tf.function`` or :func:`checkmate.tf2.function`.
        """
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, self.model(x, training=True))
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
        return loss

    @property
    def variables(self) -> list[keras.Variable]:
        """Every variable that a step may write: weights, batch-norm averages, dropout seeds, Adam slots."""
        return [*self.model.variables, *self.optimizer.variables]


def vgg(
    *,
    image: int = 32,
    batch: int = 16,
    width: int = 16,
    levels: int = 3,
    seed: int = 0,
    wrap: Wrap | None = None,
) -> Case:
    """Convolutions and poolings in a chain, then dense layers (Simonyan and Zisserman, ICLR 2015)."""
    inputs = x = _start(image, seed)
    for level in range(levels):
        x = _block([layer for _ in range(2) for layer in (_conv(width * 2**level), layers.ReLU())], wrap)(x)
        x = layers.MaxPooling2D(2)(x)
    x = layers.Dense(64, activation="relu")(layers.Flatten()(x))
    return _case("vgg", inputs, layers.Dense(10)(x), _images(image, batch, seed))


def resnet(
    *,
    image: int = 32,
    batch: int = 16,
    width: int = 16,
    stages: Sequence[int] = (2, 2),
    seed: int = 0,
    wrap: Wrap | None = None,
) -> Case:
    """Bottlenecks around shortcuts, with batch norm (He et al., CVPR 2016)."""
    inputs = _start(image, seed)
    x = layers.ReLU()(layers.BatchNormalization()(_conv(width, bias=False)(inputs)))
    for stage, blocks in enumerate(stages):
        for k in range(blocks):
            wide, strides = 4 * width * 2**stage, 2 if stage and not k else 1
            stack = _block(
                [
                    *_normed(_conv(wide // 4, 1, strides=strides, bias=False)),
                    *_normed(_conv(wide // 4, bias=False)),
                    _conv(wide, 1, bias=False),
                    layers.BatchNormalization(),
                ],
                wrap,
            )
            shortcut = x if k else layers.BatchNormalization()(_conv(wide, 1, strides=strides, bias=False)(x))
            x = layers.ReLU()(layers.Add()([stack(x), shortcut]))
    x = layers.GlobalAveragePooling2D()(x)
    return _case("resnet", inputs, layers.Dense(10)(x), _images(image, batch, seed))


def densenet(
    *,
    image: int = 32,
    batch: int = 16,
    growth: int = 12,
    stages: Sequence[int] = (3, 3),
    seed: int = 0,
    wrap: Wrap | None = None,
) -> Case:
    """Every layer reads all those before it in its stage (Huang et al., CVPR 2017)."""
    inputs = _start(image, seed)
    x = _conv(2 * growth, bias=False)(inputs)
    for stage, blocks in enumerate(stages):
        if stage:
            x = layers.AveragePooling2D(2)(
                _block([*_norming(), _conv(x.shape[-1] // 2, 1, bias=False)], wrap)(x)
            )
        for _ in range(blocks):
            grow = [*_norming(), _conv(4 * growth, 1, bias=False), *_norming(), _conv(growth, bias=False)]
            x = layers.Concatenate()([x, _block(grow, wrap)(x)])
    x = layers.GlobalAveragePooling2D()(layers.ReLU()(layers.BatchNormalization()(x)))
    return _case("densenet", inputs, layers.Dense(10)(x), _images(image, batch, seed))


def efficientnet(
    *,
    image: int = 32,
    batch: int = 16,
    width: int = 8,
    blocks: int = 3,
    dropout: float = 0.2,
    seed: int = 0,
    wrap: Wrap | None = None,
) -> Case:
    """Inverted bottlenecks, each with a gate per channel and stochastic depth (Tan and Le, ICML 2019)."""
    inputs = _start(image, seed)
    x = _conv(width, bias=False)(inputs)
    for _ in range(blocks):
        wide = _block(
            [
                *_normed(_conv(6 * width, 1, bias=False), "silu"),
                *_normed(layers.DepthwiseConv2D(3, padding="same", use_bias=False), "silu"),
            ],
            wrap,
        )(x)
        gate = layers.GlobalAveragePooling2D(keepdims=True)(wide)
        gate = _conv(6 * width, 1, activation="sigmoid")(_conv(width // 2, 1, activation="silu")(gate))
        narrow = layers.BatchNormalization()(_conv(width, 1, bias=False)(layers.Multiply()([wide, gate])))
        x = layers.Add()([x, layers.Dropout(dropout, noise_shape=(None, 1, 1, 1))(narrow)])
    x = layers.GlobalAveragePooling2D()(x)
    return _case("efficientnet", inputs, layers.Dense(10)(x), _images(image, batch, seed))


def unet(
    *,
    image: int = 32,
    batch: int = 8,
    width: int = 8,
    levels: int = 3,
    dropout: float = 0.0,
    seed: int = 0,
    wrap: Wrap | None = None,
) -> Case:
    """Down, up, and a skip connection across each level (Ronneberger et al., MICCAI 2015)."""
    inputs = x = _start(image, seed)

    def block(channels: int) -> keras.layers.Layer:
        drop = [layers.Dropout(dropout)] if dropout else []
        return _block([*_normed(_conv(channels)), *_normed(_conv(channels)), *drop], wrap)

    skips = []
    for level in range(levels):
        skips.append(block(width * 2**level)(x))
        x = layers.MaxPooling2D(2)(skips[-1])
    x = block(width * 2**levels)(x)
    for level in reversed(range(levels)):
        x = layers.Conv2DTranspose(width * 2**level, 2, strides=2, padding="same")(x)
        x = block(width * 2**level)(layers.Concatenate()([x, skips[level]]))
    x_batch, _ = _images(image, batch, seed)
    labels = _labels([batch, image, image], 10, seed)
    return _case("unet", inputs, _conv(10, 1)(x), (x_batch, labels))


def transformer(
    *,
    length: int = 32,
    batch: int = 8,
    width: int = 32,
    blocks: int = 3,
    dropout: float = 0.1,
    vocabulary: int = 100,
    seed: int = 0,
    wrap: Wrap | None = None,
) -> Case:
    """Pre-norm attention and dense layers with dropout, on tokens (Vaswani et al., NeurIPS 2017)."""
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((length,), dtype="int32")
    x = layers.Embedding(vocabulary, width)(inputs)
    for _ in range(blocks):
        normed = keras.Input((length, width))
        y = layers.LayerNormalization()(normed)
        y = normed + layers.MultiHeadAttention(4, width // 4, dropout=dropout)(y, y)
        z = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(y))
        z = y + layers.Dropout(dropout)(layers.Dense(width)(z))
        one = keras.Model(normed, z)
        x = (wrap(one) if wrap else one)(x)
    tokens, labels = (_labels([batch, length], vocabulary, seed + k) for k in (0, 1))
    return _case("transformer", inputs, layers.Dense(vocabulary)(x), (tokens, labels))


def application(name: str, *, image: int = 64, batch: int = 8, seed: int = 0, **options: Any) -> Case:
    """A network of ``keras.applications``, with random weights and ten classes.

    Args:
        name: such as ``"VGG19"``.
        image: pixels of a side.
        batch: images.
        seed: of weights and batch.
        options: further arguments of ``keras.applications.NAME``.
    """
    keras.utils.set_random_seed(seed)
    build = getattr(keras.applications, name)
    model = build(
        weights=None, input_shape=(image, image, 3), classes=10, classifier_activation=None, **options
    )
    return _trained(name.lower(), model, _images(image, batch, seed))


def in_blocks(case: Case, wrap: Wrap) -> Case:
    """The same network and weights, cut into blocks, each wrapped."""
    return _trained(case.name, cut(case.model, wrap), case.batch)


def cut(model: keras.Model, wrap: Wrap) -> keras.Model:
    """The same layers, cut into blocks, each wrapped.

    A cut needs a place that a single tensor crosses: about √n blocks of n layers, fewer without such places.
    """
    place = {layer.name: k for k, layer in enumerate(model.layers)}
    reach = list(range(len(place)))  # the last layer that reads a result of any layer up to here
    for k, layer in enumerate(model.layers):
        for node in layer._inbound_nodes[:1]:
            for parent in node.parent_nodes:
                made = place[parent.operation.name]
                reach[made] = max(reach[made], k)
    for k in range(1, len(reach)):
        reach[k] = max(reach[k], reach[k - 1])
    size = round(len(reach) ** 0.5)
    cuts = [0]
    for k in range(1, len(reach) - 1):
        if k - cuts[-1] >= size and max(reach[:k]) <= k:
            cuts.append(k)
    inputs = x = keras.Input(model.input_shape[1:])
    for first, last in pairwise([*cuts, len(reach) - 1]):
        x = wrap(keras.Model(model.layers[first].output, model.layers[last].output))(x)
    return keras.Model(inputs, x)


CASES: dict[str, Callable[..., Case]] = {
    "vgg": vgg,
    "resnet": resnet,
    "densenet": densenet,
    "efficientnet": efficientnet,
    "unet": unet,
    "transformer": transformer,
}
"""The small networks by name."""


def _start(image: int, seed: int) -> Any:
    keras.utils.set_random_seed(seed)
    return keras.Input((image, image, 3))


def _case(name: str, inputs: Any, outputs: Any, batch: tuple[tf.Tensor, tf.Tensor]) -> Case:
    return _trained(name, keras.Model(inputs, outputs), batch)


def _trained(name: str, model: keras.Model, batch: tuple[tf.Tensor, tf.Tensor]) -> Case:
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    return Case(name=name, model=model, optimizer=optimizer, batch=batch)


def _images(image: int, batch: int, seed: int) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.random.stateless_normal([batch, image, image, 3], [seed, 0]), _labels([batch], 10, seed)


def _labels(shape: Sequence[int], classes: int, seed: int) -> tf.Tensor:
    return tf.random.stateless_uniform(shape, [seed, 1], 0, classes, tf.int32)


def _block(stack: list[keras.layers.Layer], wrap: Wrap | None) -> keras.layers.Layer:
    block = keras.Sequential(stack)
    return wrap(block) if wrap else block


def _conv(
    channels: int, size: int = 3, *, strides: int = 1, bias: bool = True, activation: str | None = None
) -> keras.layers.Layer:
    return layers.Conv2D(
        channels, size, strides=strides, padding="same", use_bias=bias, activation=activation
    )


def _normed(layer: keras.layers.Layer, activation: str = "relu") -> list[keras.layers.Layer]:
    return [layer, layers.BatchNormalization(), layers.Activation(activation)]


def _norming() -> list[keras.layers.Layer]:
    return [layers.BatchNormalization(), layers.ReLU()]

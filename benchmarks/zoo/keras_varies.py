"""Loops of training steps that vary, as people write them with Keras: lengths, last batches, steps in turn.

Each loop has thirty steps. It passes its steps, or a compiled model, through a door that may plan them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf
from keras import layers

__all__ = ["STEPS", "VARYING", "Door", "Varying"]

STEPS = 30
_WORDS, _CLASSES, _WIDTH = 64, 8, 64
_LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
Model = Any  # Keras has no types


class Door(Protocol):
    """What a loop trains with."""

    def function(self, step: Callable[..., Any], *owners: Model) -> Callable[..., Any]:
        """A step as a function that TensorFlow runs; models and optimizers whose variables it uses."""

    def model(self, model: Model) -> Callable[[Any, Any], Any]:
        """A compiled model as a function that trains it on a batch."""

    def ended(self, *losses: Any) -> None:
        """End a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Varying:
    """A loop whose steps vary.

    Attributes:
        loop: trains with what the door returns.
        budget: share of the largest plain peak, passed in bytes; text, such as ``"70%"``, is passed as it is.
        changes: later steps that train other variables, or compute other losses, and so may have a new plan.
    """

    loop: Callable[[Door], None]
    budget: float | str
    changes: tuple[int, ...] = ()


VARYING: dict[str, Varying] = {}
"""Name → loop, in the order of the table."""
_Loop = Callable[[Door], None]


def _varying(name: str, budget: float | str, *, changes: tuple[int, ...] = ()) -> Callable[[_Loop], _Loop]:
    def register(loop: _Loop) -> _Loop:
        VARYING[name] = Varying(loop=loop, budget=budget, changes=changes)
        return loop

    return register


def _random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def _language_model(blocks: int = 2) -> Model:
    """A small transformer that predicts the next word of texts of any length."""
    words = keras.Input((None,), dtype="int32")
    x = layers.Embedding(_WORDS, _WIDTH)(words)
    for _ in range(blocks):
        x = layers.LayerNormalization()(
            x + layers.MultiHeadAttention(4, _WIDTH // 4)(x, x, use_causal_mask=True)
        )
        x = layers.LayerNormalization()(x + layers.Dense(_WIDTH)(layers.Dense(4 * _WIDTH, "gelu")(x)))
    return keras.Model(words, layers.Dense(_WORDS)(x))


def _images_model(width: int = 16) -> Model:
    """A small convolutional network for images of any size."""
    image = x = keras.Input((None, None, 3))
    for level in range(3):
        for _ in range(2):
            x = layers.Conv2D(width << level, 3, padding="same", use_bias=False)(x)
            x = layers.ReLU()(layers.BatchNormalization()(x))
        x = layers.AveragePooling2D(2)(x)
    return keras.Model(image, layers.Dense(_CLASSES)(layers.GlobalAveragePooling2D()(x)))


def _compiled(model: Model) -> Model:
    model.compile("adam", _LOSS, jit_compile=False)
    return model


def _texts(size: int, length: int, seed: int) -> tuple[Any, Any]:
    words = _random(seed).integers(0, _WORDS, (size, length + 1))
    return words[:, :-1].astype("int32"), words[:, 1:].astype("int32")


def _images(size: int, side: int, seed: int) -> tuple[Any, Any]:
    random = _random(seed)
    return random.normal(size=(size, side, side, 3)).astype("float32"), random.integers(0, _CLASSES, size)


def _train(door: Door, model: Model, batches: Iterable[tuple[Any, Any]]) -> None:
    train = door.model(_compiled(model))
    for x, y in batches:
        door.ended(train(x, y))


def _with(*nets: Model, rate: float = 1e-3) -> tuple[list[Any], Any]:
    """The trained variables of some networks, and their optimizer."""
    variables, optimizer = [v for net in nets for v in net.trainable_variables], keras.optimizers.Adam(rate)
    optimizer.build(variables)
    return variables, optimizer


@_varying("lengths drawn at random", 0.7)
def _random_lengths(door: Door) -> None:
    lengths = _random().integers(16, 97, STEPS)
    _train(door, _language_model(), (_texts(16, n, k) for k, n in enumerate(lengths)))


@_varying("lengths in four buckets", 0.7)
def _buckets(door: Door) -> None:
    lengths = _random().choice([24, 48, 72, 96], STEPS)
    _train(door, _language_model(), (_texts(16, n, k) for k, n in enumerate(lengths)))


@_varying("lengths in four buckets, 1536 words in each batch", 0.7)
def _even_buckets(door: Door) -> None:
    lengths = _random().choice([24, 48, 72, 96], STEPS)
    _train(door, _language_model(), (_texts(16 * 96 // n, n, k) for k, n in enumerate(lengths)))


@_varying("sorted lengths, the longest last", "70%")
def _sorted_lengths(door: Door) -> None:
    lengths = sorted(_random().choice(range(16, 97, 8), STEPS))
    _train(door, _language_model(), (_texts(16, n, k) for k, n in enumerate(lengths)))


@_varying("a smaller last batch in each epoch", "70%")
def _last_batches(door: Door) -> None:
    _train(door, _images_model(), (_images(7 if k % 5 == 4 else 16, 32, k) for k in range(STEPS)))


@_varying("two sets of images of other sizes, in turn", 0.7)
def _two_sets(door: Door) -> None:
    _train(door, _images_model(), (_images(*((8, 48) if k % 2 else (16, 32)), k) for k in range(STEPS)))


@_varying("resolutions that grow", "70%", changes=(10, 20))
def _resolutions(door: Door) -> None:
    _train(door, _images_model(), (_images(8, (24, 32, 48)[k // 10], k) for k in range(STEPS)))


@_varying("layers unfrozen, then frozen again", "80%", changes=(10, 20))
def _frozen(door: Door) -> None:
    model = _images_model()
    for k, frozen in enumerate((8, 0, 8)):
        for layer in model.layers:
            layer.trainable = True
        for layer in model.layers[:frozen]:
            layer.trainable = False
        train = door.model(_compiled(model))
        for i in range(STEPS // 3):
            door.ended(train(*_images(16, 32, 10 * k + i)))


class _Pair:
    """A generator and a critic of images."""

    def __init__(self) -> None:
        self.generator = keras.Sequential(
            [
                keras.Input((32,)),
                layers.Dense(8 * 8 * 32),
                layers.Reshape((8, 8, 32)),
                *(
                    layers.Conv2DTranspose(w, 3, strides=2, padding="same", activation="relu")
                    for w in (32, 16)
                ),
                layers.Conv2D(3, 3, padding="same"),
            ]
        )
        self.critic = keras.Sequential(
            [
                keras.Input((32, 32, 3)),
                *(
                    layers.Conv2D(w, 3, strides=2, padding="same", activation="leaky_relu")
                    for w in (16, 32, 64)
                ),
                layers.Flatten(),
                layers.Dense(1),
            ]
        )

    def steps(self, door: Door) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """The step of the critic and the step of the generator."""
        generator, critic = self.generator, self.critic
        of_critic, critics = _with(critic, rate=1e-4)
        of_generator, generators = _with(generator, rate=1e-4)

        def judge(images: Any, noise: Any) -> Any:
            with tf.GradientTape() as tape:
                real, made = critic(images, training=True), critic(generator(noise), training=True)
                loss = tf.reduce_mean(tf.nn.softplus(-real)) + tf.reduce_mean(tf.nn.softplus(made))
            critics.apply_gradients(zip(tape.gradient(loss, of_critic), of_critic, strict=True))
            return loss

        def make(noise: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.nn.softplus(-critic(generator(noise, training=True))))
            generators.apply_gradients(zip(tape.gradient(loss, of_generator), of_generator, strict=True))
            return loss

        nets = generator, critic
        return door.function(judge, *nets, critics), door.function(make, *nets, generators)


def _noise(size: int, seed: int) -> Any:
    return tf.random.stateless_normal([size, 32], [seed, 0])


@_varying("a GAN, critic and generator in turn", 0.8)
def _gan(door: Door) -> None:
    judge, make = _Pair().steps(door)
    for k in range(STEPS):
        images = tf.constant(_images(16, 32, k)[0])
        door.ended(judge(images, _noise(16, k)), make(_noise(16, k)))


@_varying("a GAN, five steps of the critic for one of the generator", "80%")
def _critics(door: Door) -> None:
    judge, make = _Pair().steps(door)
    for k in range(STEPS):
        losses = [judge(tf.constant(_images(16, 32, k)[0]), _noise(16, k))]
        door.ended(*losses, *([make(_noise(32, k))] if k % 5 == 4 else []))


@_varying("three heads in turn", 0.8)
def _heads(door: Door) -> None:
    body = _images_model()
    body = keras.Model(body.input, body.layers[-2].output)
    heads = [layers.Dense(n) for n in (4, 8, 12)]
    for head in heads:
        head.build(body.output.shape)
    _, optimizer = _with(body, *heads)

    def step(image: Any, label: Any, which: int) -> Any:
        trained = [*body.trainable_variables, *heads[which].trainable_variables]
        with tf.GradientTape() as tape:
            loss = _LOSS(label, heads[which](body(image, training=True)))
        optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained, strict=True))
        return loss

    run = door.function(step, body, *heads, optimizer)
    for k in range(STEPS):
        image, label = map(tf.constant, _images(16, 32, k))
        door.ended(run(image, label % 4, k % 3))


@_varying("a mixture of experts, each for the words that choose it", 0.7)
def _experts(door: Door) -> None:
    words = layers.Embedding(_WORDS, _WIDTH)
    gate, out = layers.Dense(4), layers.Dense(_WORDS)
    experts = [layers.Dense(_WIDTH, "gelu") for _ in range(4)]
    net = _language_model()
    for layer in (gate, out, *experts):
        layer.build((None, _WIDTH))
    words.build()
    parts = (net, words, gate, out, *experts)
    variables, optimizer = _with(*parts)

    def step(text: Any, label: Any) -> Any:
        with tf.GradientTape() as tape:
            x = tf.reshape(words(text), [-1, _WIDTH])
            share = tf.nn.softmax(gate(x))
            chosen = tf.cast(tf.argmax(share, 1), tf.int32)
            parts_of = tf.dynamic_partition(tf.range(tf.shape(x)[0]), chosen, 4)
            made = [
                e(tf.gather(x, i)) * tf.gather(share, i)[:, k : k + 1]
                for k, (e, i) in enumerate(zip(experts, parts_of, strict=True))
            ]
            joined = tf.ensure_shape(tf.dynamic_stitch(parts_of, made), x.shape)
            loss = _LOSS(tf.reshape(label, [-1]), out(joined)) + _LOSS(label, net(text, training=True))
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    run = door.function(step, *parts, optimizer)
    for k in range(STEPS):
        door.ended(run(*map(tf.constant, _texts(16, 64, k))))


@_varying("a decoder that is called with one word more, eight times in a step", 0.7)
def _decoder(door: Door) -> None:
    net = _language_model()
    variables, optimizer = _with(net)

    def step(text: Any, label: Any) -> Any:
        with tf.GradientTape() as tape:
            calls = [_LOSS(label[:, n - 1], net(text[:, :n], training=True)[:, -1]) for n in range(25, 33)]
            loss = tf.add_n(calls) / len(calls)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    run = door.function(step, net, optimizer)
    for k in range(STEPS):
        door.ended(run(*map(tf.constant, _texts(16, 32, k))))


@_varying("gradients added up over pieces of other lengths", 0.7)
def _accumulated(door: Door) -> None:
    net = _language_model()
    variables, optimizer = _with(net)
    sums = [tf.Variable(tf.zeros(v.shape)) for v in variables]

    def add(text: Any, label: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = _LOSS(label, net(text, training=True))
        for total, gradient in zip(sums, tape.gradient(loss, variables), strict=True):
            total.assign_add(gradient)
        return loss

    def update() -> None:
        optimizer.apply_gradients(zip([tf.identity(total) for total in sums], variables, strict=True))
        for total in sums:
            total.assign(tf.zeros(total.shape))

    piece, end = door.function(add, net, sums), tf.function(update)
    for k in range(STEPS):
        losses = [piece(*map(tf.constant, _texts(16, n, k))) for n in (48, 32, 24, 16)]
        end()
        door.ended(*losses)


@_varying("a weight of the loss that changes in each step, as a tensor", 0.7)
def _annealed(door: Door) -> None:
    run = _weighted(door)
    for k in range(STEPS):
        door.ended(run(*map(tf.constant, _images(16, 32, k)), tf.constant(0.9**k)))


@_varying("a weight of the loss that changes in each step, as a number of Python", 0.7)
def _annealed_number(door: Door) -> None:
    run = _weighted(door)
    for k in range(STEPS):
        door.ended(run(*map(tf.constant, _images(16, 32, k)), 0.9**k))


def _weighted(door: Door) -> Callable[..., Any]:
    net = _images_model()
    variables, optimizer = _with(net)

    def step(image: Any, label: Any, weight: Any) -> Any:
        with tf.GradientTape() as tape:
            found = net(image, training=True)
            loss = _LOSS(label, found) + weight * tf.reduce_mean(tf.square(found))
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return door.function(step, net, optimizer)

"""Small programs, of about twenty heavy ops each, on which the conformance kit tests the executor.

Their large tensors have tens of KiB, far more than all small ones together. Each is a function of tensors
that returns losses and gradients, and may update variables; all variables are restored before each run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from checkmate import Schedule
from checkmate.plugins import Executor, Observed
from checkmate_tf.adapters.observe import observe
from checkmate_tf.api.bind import BoundStep, TracedFunction
from checkmate_tf.api.compile import iteration
from checkmate_tf.api.function import PlannedFunction
from checkmate_tf.planning.options import Options

__all__ = ["TRIALS", "FunctionTrial"]

_SIDE = 128  # a matrix of 128 × 128 float32 numbers has 64 KiB
_Call = tuple[Callable[..., Any], tuple[tf.Tensor, ...]]


class FunctionTrial:
    """A trial of a function of tensors; a ``Trial`` of :mod:`checkmate.plugins`.

    Args:
        make: makes the function and its arguments; its name is the trial's.
    """

    def __init__(self, make: Callable[[], _Call]) -> None:
        """Nothing is made before the trial is used."""
        self.name = make.__name__.strip("_").replace("_", " ")
        self._make = make

    @cached_property
    def _program(self) -> _Call:
        keras.utils.set_random_seed(0)
        return self._make()

    @cached_property
    def _traced(self) -> TracedFunction:
        function, arguments = self._program
        options = Options.parse(cost_model="flops", workspaces=True, cache=False)
        return PlannedFunction(function, options).trace(*arguments)

    @cached_property
    def _start(self) -> list[tuple[tf.Variable, Any]]:
        """The variables of the program, and their values at the start."""
        variables = self._traced.variables
        return [(v, tf.raw_ops.DeepCopy(x=v)) for v in variables]

    def traced(self) -> TracedFunction:
        """The function, traced."""
        return self._traced

    def plain(self) -> Sequence[Any]:
        """The results of TensorFlow's own function."""
        function, arguments = self._program
        self._restore()
        before = tf.config.optimizer.get_experimental_options()
        tf.config.optimizer.set_experimental_options({"remapping": False})
        try:
            return self._read(tf.function(function)(*arguments))
        finally:
            tf.config.optimizer.set_experimental_options({"remapping": True, **before})

    def run(self, bound: Callable[..., Any]) -> Sequence[Any]:
        """The results of the function, flat, and the variables after the call."""
        self._restore()
        return self._read(bound(*self._program[1]))

    def observe(self, executor: Executor, traced: Any, schedule: Schedule) -> Observed | None:
        """Bind and call; None unless TensorFlow reports every buffer (:mod:`checkmate_tf.costs.events`)."""
        bound = executor.bind(traced, schedule)
        if not isinstance(bound, BoundStep):
            return None
        self.run(bound)
        return observe(bound, self._restore, lambda: bound(*self._program[1]), self._read)

    def _restore(self) -> None:
        for variable, value in self._start:
            variable.assign(tf.raw_ops.DeepCopy(x=value))  # else the two would share a buffer

    def _read(self, results: Any) -> list[Any]:
        leaves = [x for x in tf.nest.flatten(results) if x is not None]
        return [np.array(x.numpy()) for x in (*leaves, *(v for v, _ in self._start))]


def _numbers(*shape: int, seed: int = 0) -> tf.Tensor:
    return tf.random.stateless_normal(shape, [seed, 1])


def _gradients(loss: Callable[..., tf.Tensor], weights: Sequence[Any]) -> Callable[..., Any]:
    """A function that returns a loss and its gradients."""

    def step(*arguments: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            value = loss(*arguments)
        return value, tape.gradient(value, weights)

    return step


def _convolution_with_batch_norm() -> _Call:
    """The running statistics of batch norm are updated."""
    first, second = (tf.Variable(_numbers(3, 3, 16, 16, seed=k) / 8) for k in (1, 2))
    norm = layers.BatchNormalization()
    norm.build((4, 16, 16, 16))

    def loss(x: tf.Tensor) -> tf.Tensor:
        y = tf.nn.relu(norm(tf.nn.conv2d(x, first, 1, "SAME"), training=True))
        return tf.reduce_sum(tf.tanh(tf.nn.conv2d(y, second, 1, "SAME")))

    weights = [first, second, *(v.value for v in norm.trainable_variables)]
    return _gradients(loss, weights), (_numbers(4, 16, 16, 16),)


def _dropout() -> _Call:
    """The state of the seed generators changes with each call."""
    drop = layers.Dropout(0.3, seed=1), layers.Dropout(0.5, seed=2)
    w = tf.Variable(_numbers(_SIDE, _SIDE, seed=1) / 8)

    def loss(x: tf.Tensor) -> tf.Tensor:
        for dropout in drop:
            x = tf.tanh(dropout(x, training=True) @ w)
        return tf.reduce_sum(x * x)

    return _gradients(loss, [w]), (_numbers(_SIDE, _SIDE),)


def _attention() -> _Call:
    """Two heads, with transposes and reshapes."""
    qkv = tf.Variable(_numbers(64, 3 * 64, seed=1) / 8)

    def loss(x: tf.Tensor) -> tf.Tensor:
        q, k, v = (tf.reshape(y, [4, 64, 2, 32]) for y in tf.split(x @ qkv, 3, axis=-1))
        weights = tf.nn.softmax(tf.einsum("bqhd,bkhd->bhqk", q, k))
        return tf.reduce_sum(tf.einsum("bhqk,bkhd->bqhd", weights, v) ** 2)

    return _gradients(loss, [qkv]), (_numbers(4, 64, 64),)


def _reshapes_and_a_running_mean() -> _Call:
    """Aliases of one buffer, and a large variable that is read, overwritten, and read again."""
    w = tf.Variable(_numbers(_SIDE, _SIDE, seed=1) / 8)
    mean = tf.Variable(_numbers(_SIDE, _SIDE, seed=2), trainable=False)

    def loss(x: tf.Tensor) -> tf.Tensor:
        before = tf.reshape(tf.tanh(x @ w - mean), [_SIDE // 2, -1])
        after = tf.reshape(before, [_SIDE, _SIDE]) @ w
        mean.assign(0.9 * mean + 0.1 * after)
        return tf.reduce_sum(tf.tanh(after) * mean) + tf.reduce_sum(tf.nn.softmax(before))

    return _gradients(loss, [w]), (_numbers(_SIDE, _SIDE),)


def _split_and_unstack() -> _Call:
    """Ops of several large outputs, which are freed one by one."""
    w = tf.Variable(_numbers(_SIDE, 2 * _SIDE, seed=1) / 8)

    def loss(x: tf.Tensor) -> tf.Tensor:
        a, b = tf.split(x @ w, 2, axis=1)
        c, d, e = tf.unstack(tf.stack([tf.tanh(a), b, a * b], axis=1), axis=1)
        return tf.reduce_sum(tf.sigmoid(c) @ d + e) + tf.reduce_sum(a @ tf.tanh(e))

    return _gradients(loss, [w]), (_numbers(_SIDE, _SIDE),)


def _several_outputs() -> _Call:
    """Large activations are returned beside the loss, one of them under another shape."""
    w = tf.Variable(_numbers(_SIDE, _SIDE, seed=1) / 8)

    def step(x: tf.Tensor, labels: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            first = tf.tanh(x @ w)
            logits = first @ w
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(losses)
        return {"loss": loss, "first": tf.reshape(first, [-1]), "logits": logits, "d": tape.gradient(loss, w)}

    return step, (_numbers(_SIDE, _SIDE), tf.range(_SIDE) % 7)


def _branch() -> _Call:
    """A branch that depends on data."""
    w = tf.Variable(_numbers(_SIDE, _SIDE, seed=1) / 8)

    def loss(x: tf.Tensor) -> tf.Tensor:
        y = tf.tanh(x @ w)
        z = tf.cond(tf.reduce_sum(y) > 0, lambda: tf.sin(y @ w), lambda: tf.cos(y) @ w)
        return tf.reduce_sum(tf.tanh(tf.stop_gradient(z) * y @ w))

    return _gradients(loss, [w]), (_numbers(_SIDE, _SIDE),)


def _adam() -> _Call:
    """A training iteration of a Keras model, the optimizer applied."""
    dense = layers.Dense
    model = keras.Sequential(
        [keras.Input([_SIDE]), dense(_SIDE, "tanh"), dense(_SIDE, "sigmoid"), dense(_SIDE)]
    )
    adam = keras.optimizers.Adam(0.01)
    adam.build(model.trainable_variables)
    step = iteration(model, lambda y, z: tf.reduce_sum((y - z) ** 2), adam)
    return step, (_numbers(_SIDE, _SIDE), _numbers(_SIDE, _SIDE, seed=1))


TRIALS = tuple(
    FunctionTrial(make)
    for make in (
        *(_convolution_with_batch_norm, _dropout, _attention, _reshapes_and_a_running_mean),
        *(_split_and_unstack, _several_outputs, _branch, _adam),
    )
)

"""A function that XLA compiles is one op, which is measured; Keras has some for grouped convolutions."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import checkmate.tf2
from checkmate_tf.ops.storages import is_compiled

X, Y = tf.random.stateless_normal([8, 16, 16, 16], [0, 1]), tf.zeros([8], tf.int32)


class Compiled(layers.Layer):
    """It reads a variable, and writes to one."""

    def __init__(self, *, counts: bool) -> None:
        super().__init__()
        self.counts = counts

    def build(self, shape: tuple[int, ...]) -> None:
        self.scale = self.add_weight(shape=shape[-1:], initializer="ones")
        self.seen = tf.Variable(
            0.0, trainable=False
        )  # Keras forgets assignments of its own in such a function

    @tf.function(jit_compile=True)  # type: ignore[untyped-decorator]
    def call(self, x: tf.Tensor) -> tf.Tensor:
        if self.counts:
            self.seen.assign_add(1.0)
        return tf.nn.softmax(x * self.scale)


def model(*, counts: bool = False) -> keras.Model:
    keras.utils.set_random_seed(0)
    grouped = [
        layers.Conv2D(32, k, padding="same", groups=g, activation="gelu") for k, g in ((3, 4), (7, 32))
    ]
    head = [layers.GlobalAveragePooling2D(), layers.Dense(10)]
    made = keras.Sequential([keras.Input(X.shape[1:]), *grouped, Compiled(counts=counts), *head])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile(keras.optimizers.Adam(), loss, jit_compile=False)
    return made


def trained(made: keras.Model) -> list[np.ndarray[Any, Any]]:
    for _ in range(3):
        made.train_on_batch(X, Y)
    return [v.numpy() for v in (*made.variables, *made.optimizer.variables)]


@pytest.mark.parametrize("budget", ["100%", "80%"])
def test_grouped_convolutions_train_as_in_keras_within_the_budget(budget: str) -> None:
    ours = model()
    training = checkmate.tf2.enable(ours, budget, time_limit=2)
    for given, expected in zip(trained(ours), trained(model()), strict=True):
        np.testing.assert_allclose(given, expected, rtol=1e-5, atol=1e-6)
    with checkmate.tf2.memory_meter(ours, ours.optimizer, X, Y) as meter:
        ours.train_on_batch(X, Y)
    (plan,) = training.plans
    assert meter.peak <= plan.solution.problem.budget
    assert meter.peak >= 0.95 * plan.expected
    assert not list(plan.traced.uncounted)
    assert max(plan.step.workspaces[op] for op in plan.traced.heavy if is_compiled(op)) > 400_000


def test_a_compiled_function_that_writes_runs_once_and_is_not_counted() -> None:
    ours = model(counts=True)
    training = checkmate.tf2.enable(ours, "100%", time_limit=2)
    trained(ours)
    (plan,) = training.plans
    plain = model(counts=True)
    trained(plain)
    assert float(ours.layers[2].seen) == float(plain.layers[2].seen) > 0
    assert [op.type for op in plan.traced.uncounted] == ["StatefulPartitionedCall"]

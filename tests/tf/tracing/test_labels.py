"""Messages name ops by layer: a user knows the layers of a model, not the numbers of a graph."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers

from checkmate_tf.capture.function_capture import capture
from checkmate_tf.tracing.labels import Labels
from checkmate_tf.tracing.step_graph import TracedGraph, trace


def traced() -> TracedGraph:
    image = keras.Input([16, 16, 3])
    x = layers.Conv2D(8, 3, padding="same", name="stem")(image)
    y = layers.BatchNormalization(name="norm")(layers.Conv2D(8, 3, padding="same", name="inner")(x))
    x = layers.Add()([x, layers.ReLU(name="act")(y)])
    model = keras.Model(image, layers.Dense(2, name="head")(layers.Flatten()(x)), name="net")
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True) ** 2)
        optimizer.apply(tape.gradient(loss, model.trainable_variables))
        return loss

    return trace(capture(tf.function(step).get_concrete_function(tf.TensorSpec([32, 16, 16, 3]))))


def test_bottlenecks_are_named_by_layer() -> None:
    found = traced()
    names = [op.name for op in found.graph.ops]
    sums = [name for name in names if "AddN" in name]
    assert {"net_1/inner_1, gradient of weights", "net_1/stem_1, gradient of bias"} <= {*names}
    assert {f"net_1/head_1, gradient of {what}" for what in ("weights", "input")} <= {*names}
    assert sums
    assert all(name.startswith("net_1/") and "gradient of output (AddN" in name for name in sums)
    assert not any(name.startswith(("gradient_tape", "AddN")) for name in names)


def test_variables_have_their_names() -> None:
    found = traced()
    tensors = {tensor.name for tensor in found.graph.tensors}
    assert {"inner/kernel", "inner/kernel version 1", "head/kernel"} <= tensors
    assert any(op.name.startswith("inner/kernel, ") for op in found.graph.ops)


def test_a_branch_names_its_largest_variable() -> None:
    small, large = (tf.Variable(tf.zeros(n), name=name) for n, name in ((8, "small"), (64, "large")))

    def step(x: tf.Tensor) -> tf.Tensor:
        return tf.cond(x > 0, lambda: small.assign_add(large[:8]), lambda: small.assign(large[8:16]))

    captured = capture(tf.function(step).get_concrete_function(tf.TensorSpec([])))
    label = Labels.of(captured)
    assert "cond with 2 variables, the largest large" in [label(op) for op in captured.ops]


def test_ops_outside_of_layers_keep_their_names() -> None:
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return tf.add_n([x, y, x @ y], name="total")

    captured = capture(tf.function(step).get_concrete_function(*[tf.TensorSpec([64, 64])] * 2))
    label = Labels.of(captured)
    assert "total" in [label(op) for op in captured.ops]
    assert [label(op) for op in captured.ops] == [op.name for op in captured.ops]

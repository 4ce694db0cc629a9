"""A capture has the ops that a step needs and no others, and the shapes that the trace knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import pytest
import tensorflow as tf

import checkmate.tf2
from checkmate_tf.capture.function_capture import capture

X = tf.TensorSpec([64, 32])
GRAPH = tf.sparse.eye(64)
Layer = Callable[[tf.Tensor], tf.Tensor]


def trained(layer: Layer, w: tf.Variable) -> Callable[[tf.Tensor], tf.Tensor]:
    """A step that trains ``w`` within a layer."""

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(x) ** 2)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    return step


def test_a_nested_function_holds_no_more_than_the_same_lines_without_it() -> None:
    net = keras.Sequential(
        [
            keras.Input([24, 24, 8]),
            *(
                keras.Sequential([keras.layers.Conv2D(8, 3), keras.layers.BatchNormalization()])
                for _ in "123"
            ),
        ]
    )
    shape = tf.TensorSpec([8, 24, 24, 8])

    def peak(layer: Layer) -> int:
        step = trained(layer, net.layers[0].layers[0].kernel.value)
        return checkmate.tf2.function(step, budget="100%", workspaces=False).plan(shape).plain_peak

    plain = peak(lambda x: net(x, training=True))
    nested = peak(tf.function(lambda x: net(x, training=True)))
    assert abs(nested - plain) < 0.01 * plain


def test_a_capture_has_no_op_in_vain() -> None:
    w = tf.Variable(tf.eye(32))

    @tf.function
    def block(x: tf.Tensor) -> tf.Tensor:
        return tf.nn.gelu(tf.nn.relu(x @ w))

    captured = capture(tf.function(trained(block, w)).get_concrete_function(X))
    assert "IdentityN" not in {op.type for op in captured.ops}
    read = {t.op.name for op in captured.ops for t in op.inputs}
    waited = {c.name for op in captured.ops for c in op.control_inputs}
    returned = {t.op.name for t in (*captured.outputs, *captured.inputs)}
    effects = {op.name for op in captured.ops if "Assign" in op.type}
    assert {op.name for op in captured.ops} <= read | waited | returned | effects


def by_python(x: tf.Tensor) -> tf.Tensor:
    made = tf.numpy_function(lambda a: 2 * a, [x], tf.float32)
    made.set_shape(x.shape)
    return made


def by_a_sparse_matrix(x: tf.Tensor) -> tf.Tensor:
    return tf.sparse.sparse_dense_matmul(GRAPH, x)


@pytest.mark.parametrize("nested", [False, True], ids=["direct", "nested"])
@pytest.mark.parametrize("layer", [by_python, by_a_sparse_matrix])
def test_shapes_that_the_trace_knows_stay_known(layer: Layer, nested: bool) -> None:
    w = tf.Variable(tf.eye(32))

    def layers(x: tf.Tensor) -> Any:
        return tf.nn.relu(layer(x) @ w)

    step = trained(tf.function(layers) if nested else layers, w)
    plan = checkmate.tf2.function(step, budget="100%").plan(X)
    assert not [op.name for op in plan.traced.uncounted]


@pytest.fixture
def in_bfloat16() -> Iterator[None]:
    switch = "auto_mixed_precision_onednn_bfloat16"
    tf.config.optimizer.set_experimental_options({switch: True})
    yield
    tf.config.optimizer.set_experimental_options({switch: False})


@pytest.mark.usefixtures("in_bfloat16")
def test_passes_that_the_user_switches_rewrite_the_step() -> None:
    w = tf.Variable(tf.random.stateless_normal([3, 3, 8, 8], [1, 2]))
    step = trained(lambda x: tf.nn.relu(tf.nn.conv2d(x, w, 1, "SAME")), w)
    captured = capture(tf.function(step).get_concrete_function(tf.TensorSpec([8, 24, 24, 8])))
    (forward,) = (op for op in captured.ops if op.type in ("Conv2D", "_FusedConv2D"))
    assert forward.outputs[0].dtype == tf.bfloat16

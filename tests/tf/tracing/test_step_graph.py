"""The groups of ops leave schedules free: no op waits for another because of the group that it joined."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf
from keras import layers

from checkmate_tf.capture.function_capture import capture
from checkmate_tf.tracing.step_graph import TracedGraph, trace


@pytest.fixture(scope="module", params=["sgd", "adam"])
def traced(request: pytest.FixtureRequest) -> TracedGraph:
    """A step of three convolutions and an optimizer."""
    optimizer = {"sgd": keras.optimizers.SGD(0.1, momentum=0.9), "adam": keras.optimizers.Adam()}
    stack = [layers.Conv2D(16, 3, activation="relu", padding="same") for _ in range(3)]
    model = keras.Sequential([keras.Input((16, 16, 8)), *stack])
    chosen = optimizer[request.param]
    chosen.build(model.trainable_variables)

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True) ** 2)
        chosen.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    return trace(capture(step.get_concrete_function(tf.TensorSpec([4, 16, 16, 8]))))


def test_an_update_reads_only_variables_and_gradients(traced: TracedGraph) -> None:
    graph = traced.graph
    for v in traced.writes:
        makers = [int(graph.producer[t]) for t in graph.ops[v].inputs]
        assert all(graph.ops[u].backward for u in makers if u >= 0)


def test_gradients_of_weights_do_not_wait_for_their_updates(traced: TracedGraph) -> None:
    graph = traced.graph
    first_update = min(v for v in traced.writes if any(graph.tensors[t].size for t in graph.ops[v].inputs))
    made = [v for v, group in enumerate(traced.groups) if group[0].type == "Conv2DBackpropFilter"]
    assert len(made) == 3
    assert max(made) < first_update


def test_a_convolution_its_bias_and_its_activation_are_one_group(traced: TracedGraph) -> None:
    forward = [[op.type for op in group] for group in traced.groups if group[0].type == "Conv2D"]
    bias = "BiasAdd" if "BiasAdd" in forward[0] else "AddV2"  # of Keras 3.3
    assert forward == [["Conv2D", bias, "Relu"]] * 3


def test_an_update_runs_once(traced: TracedGraph) -> None:
    assert not any(traced.graph.ops[v].recomputable for v in traced.writes)


def test_a_product_with_one_is_no_op() -> None:
    """``silu`` multiplies by β = 1; Grappler removes that where it knows the shape of the variable."""
    kernel = tf.Variable(tf.ones([3, 3, 8, 8]))

    @tf.function(autograph=False)
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.silu(tf.nn.conv2d(x, kernel, 1, "SAME")))
        return tape.gradient(loss, kernel)

    ops = capture(step.get_concrete_function(tf.TensorSpec([2, 16, 16, 8]))).ops
    constants = [tf.get_static_value(t) for op in ops if op.type == "Mul" for t in op.inputs]
    assert not any(c is not None and (c == 1).all() for c in constants)

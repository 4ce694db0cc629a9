"""Loops and tensor lists are counted: the measured peak is within the budget, and the bits are the same."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import checkmate.tf2
from checkmate import InfeasibleBudgetError
from checkmate_tf import PlannedFunction
from checkmate_tf.capture.function_capture import capture
from checkmate_tf.ops.control_flow import LOOPS
from checkmate_tf.running.emit import emit
from checkmate_tf.running.program import Program
from checkmate_tf.tracing.step_graph import TracedGraph, trace
from checkmate_tf.tracing.tensor_lists import TensorLists, tensor_lists_of

WIDTH, STEPS = 64, 12
Step = Callable[[tf.Tensor], Any]


def gradients(loss: Step, *weights: tf.Variable) -> Step:
    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            value = loss(x)
        return value, tape.gradient(value, weights)

    return step


def weight(seed: int = 1) -> tf.Variable:
    return tf.Variable(tf.random.stateless_normal([WIDTH, WIDTH], [seed, 2]) / 8)


def mapped() -> Step:
    w = weight()
    return gradients(lambda x: tf.reduce_sum(tf.map_fn(lambda row: tf.tanh(row @ w) @ w, x) ** 2), w)


def scanned() -> Step:
    w = weight()
    return gradients(lambda x: tf.reduce_sum(tf.scan(lambda y, row: tf.tanh(y @ w + row), x) ** 2), w)


def repeated() -> Step:
    w = weight()

    def loss(x: tf.Tensor) -> tf.Tensor:
        _, y = tf.while_loop(lambda k, _: k < STEPS, lambda k, y: (k + 1, tf.tanh(y @ w)), (0, x[0]))
        return tf.reduce_sum(tf.sigmoid(y @ w))

    return gradients(loss, w)


def nested() -> Step:
    """Its gradient is not counted: it takes lists from lists, and TensorFlow loses the shapes in these."""
    w = weight()

    def inner(y: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(lambda k, _: k < 3, lambda k, y: (k + 1, tf.tanh(y @ w)), (0, y))[1]

    def step(x: tf.Tensor) -> tf.Tensor:
        _, y = tf.while_loop(lambda k, _: k < 4, lambda k, y: (k + 1, tf.nn.relu(inner(y))), (0, x[0]))
        return tf.reduce_sum(y)

    return step


def limited() -> Step:
    """It ends where the data say so, or at a limit."""
    w = weight()

    def loss(x: tf.Tensor) -> tf.Tensor:
        (y,) = tf.while_loop(
            lambda y: tf.reduce_sum(y) < 1e9, lambda y: (tf.tanh(y @ w),), (x[0],), maximum_iterations=STEPS
        )
        return tf.reduce_sum(y @ w)

    return gradients(loss, w)


def recurrent(*stack: Callable[[], Any], reshape: tuple[int, ...] = ()) -> Callable[[], Step]:
    def make() -> Step:
        keras.utils.set_random_seed(0)
        shape = keras.Input([STEPS, WIDTH])
        y = layers.Reshape(reshape)(shape) if reshape else shape
        for layer in stack:
            y = layer()(y)
        model = keras.Model(shape, y)
        weights = [v.value for v in model.trainable_variables]

        def loss(x: tf.Tensor) -> tf.Tensor:
            return tf.reduce_sum(model(tf.transpose(x, [1, 0, 2]), training=True) ** 2)

        return gradients(loss, *weights)

    return make


STEPS_OF: dict[str, Callable[[], Step]] = {
    "map_fn": mapped,
    "scan": scanned,
    "while_loop": repeated,
    "nested": nested,
    "limited": limited,
    "lstm": recurrent(lambda: layers.LSTM(WIDTH, return_sequences=True), lambda: layers.LSTM(WIDTH)),
    "gru": recurrent(lambda: layers.GRU(WIDTH, return_sequences=True), lambda: layers.Dense(WIDTH, "tanh")),
    "simple": recurrent(lambda: layers.SimpleRNN(WIDTH, return_sequences=True, go_backwards=True)),
    "bidirectional": recurrent(
        lambda: layers.Bidirectional(layers.LSTM(WIDTH, return_sequences=True)),
        lambda: layers.Bidirectional(layers.GRU(WIDTH)),
    ),
    "cells": recurrent(lambda: layers.RNN([layers.LSTMCell(WIDTH), layers.GRUCell(WIDTH)])),
    "masked": recurrent(layers.Masking, lambda: layers.LSTM(WIDTH)),
    "dropout": recurrent(lambda: layers.LSTM(WIDTH, dropout=0.2, recurrent_dropout=0.2)),
    "images": recurrent(lambda: layers.ConvLSTM2D(8, 3, padding="same"), reshape=(STEPS, 8, 8, 1)),
}


def lists(step: Step, *specs: tf.TensorSpec) -> TensorLists:
    return tensor_lists_of(capture(tf.function(step).get_concrete_function(*specs)))


def flat(results: Any) -> list[np.ndarray[Any, Any]]:
    return [np.array(t) for t in tf.nest.flatten(results) if t is not None]


@pytest.fixture(params=STEPS_OF)
def step(request: pytest.FixtureRequest) -> Step:
    return STEPS_OF[request.param]()


def planned(step: Step, budget: str | int, **settings: Any) -> PlannedFunction:
    settings = {"cost_model": "flops", "time_limit": 1} | settings
    return checkmate.tf2.function(step, budget=budget, **settings)


def least(step: Step, x: tf.Tensor) -> int:
    with pytest.raises(InfeasibleBudgetError) as caught:
        planned(step, "1B").plan(x)
    assert caught.value.minimum is not None
    return caught.value.minimum


def test_a_step_that_is_traced_again_is_the_same_graph(step: Step) -> None:
    x = tf.TensorSpec([STEPS, 32, WIDTH])
    first, again = (trace(capture(tf.function(step).get_concrete_function(x))).graph for _ in range(2))
    assert first.digest == again.digest


@pytest.mark.parametrize("budget", ["100%", "least"])
def test_same_bits_within_the_budget(
    step: Step, budget: str, unscheduled: Callable[[TracedGraph], Program]
) -> None:
    """The reference is the same ops, unscheduled."""
    x = tf.random.stateless_normal([STEPS, 32, WIDTH], [1, 1])
    ours = planned(step, least(step, x) if budget == "least" else budget)
    plan = ours.plan(x)
    variables = plan.traced.captured.variables
    start = [v.numpy() for v in variables]
    expected = flat(emit(plan.traced.captured, unscheduled(plan.traced))(x))
    for variable, value in zip(variables, start, strict=True):
        variable.assign(value)
    found = [t for t in tf.nest.flatten(ours(x)) if t is not None]
    for result, reference in zip(flat(found), expected, strict=True):
        np.testing.assert_array_equal(result, reference)
    del found
    with checkmate.tf2.memory_meter(variables, x) as meter:
        ours(x)
    assert not list(plan.traced.uncounted)
    assert meter.peak <= plan.solution.problem.budget


def test_a_loop_is_computed_again() -> None:
    """Under the least budget the lists of the first layer are dropped after the forward pass."""
    step, x = STEPS_OF["bidirectional"](), tf.zeros([STEPS, 32, WIDTH])
    plan = planned(step, least(step, x)).plan(x)
    ran = [plan.step.ordered.order[v] for v in plan.schedule.sequence.tolist()]
    runs = [op.type for v in ran for op in plan.traced.groups[v]]
    assert runs.count("While") > sum(op.type == "While" for op in plan.traced.heavy)


def written(step: Callable[..., Any]) -> TensorLists:
    """Of a loop on a matrix of 8 KiB."""
    return lists(step, tf.TensorSpec([32, WIDTH]))


def test_items_that_two_lists_share_count_once() -> None:
    def step(x: tf.Tensor) -> Any:
        first, second = (tf.TensorArray(tf.float32, STEPS, element_shape=x.shape) for _ in range(2))

        def body(k: tf.Tensor, first: Any, second: Any) -> Any:
            y = tf.sin(x + tf.cast(k, tf.float32))
            return k + 1, first.write(k, y), second.write(k, tf.cos(y) if shares_nothing else y)

        _, first, second = tf.while_loop(lambda k, *_: k < STEPS, body, (0, first, second))
        return first.stack(), second.stack()

    shares_nothing = False
    found = written(step)
    ((loop, _),) = found.lends
    assert [size for (op, _), size in found.sizes.items() if op == loop and size >= 8192] == [STEPS * 8192]
    shares_nothing = True
    found = written(step)
    assert not found.lends
    assert [size for size in found.sizes.values() if size >= 8192] == [STEPS * 8192] * 2


def test_a_loop_holds_its_state_and_what_one_iteration_makes() -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(lambda k, _: k < STEPS, lambda k, y: (k + 1, tf.sin(tf.exp(y))), (0, x))[1]

    (run,) = written(step).runs.values()
    assert 3 * 8192 <= run.peak < 3 * 8192 + 100
    assert {n for op, n in run.ops.items() if op.type in ("Sin", "Exp")} == {STEPS}


def test_iterations_whose_number_depends_on_data_are_counted_up_to_a_limit() -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        (y,) = tf.while_loop(
            lambda y: tf.reduce_sum(y) < 1e9, lambda y: (tf.sin(y),), (x,), maximum_iterations=limit
        )
        return y

    def keeping(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = step(x)
        return tape.gradient(y, x)

    limit: int | None = STEPS
    (run,) = written(step).runs.values()
    assert {n for op, n in run.ops.items() if op.type == "Sin"} == {STEPS}
    limit = None
    (run,) = written(step).runs.values()
    assert 2 * 8192 <= run.peak < 2 * 8192 + 100  # whatever the number of iterations
    assert len(written(keeping).uncounted) >= 2


def growing(x: tf.Tensor) -> tf.Tensor:
    """The number of iterations depends on data."""
    held = tf.TensorArray(tf.float32, 0, dynamic_size=True, element_shape=x.shape)
    body = lambda k, held: (k + 1, held.write(k, x * tf.cast(k, tf.float32)))  # noqa: E731
    _, held = tf.while_loop(lambda k, _: tf.cast(k, tf.float32) < tf.reduce_sum(x), body, (0, held))
    return tf.reduce_sum(held.stack())


def test_what_is_not_counted_is_measured_at_the_first_step(caplog: pytest.LogCaptureFixture) -> None:
    x = tf.ones([32, WIDTH]) / 16
    ours = planned(growing, "100%")
    with caplog.at_level(logging.WARNING):
        ours(x)
        ours(x)
    (record,) = caplog.records
    assert "depend on data and are not counted" in record.getMessage()
    assert "the first step held 2." in record.getMessage()  # 128 items and their stack, 8 KiB each
    assert "reserve= makes room" in record.getMessage()


def test_a_busy_profiler_is_named(caplog: pytest.LogCaptureFixture) -> None:
    x = tf.ones([32, WIDTH]) / 16
    ours = planned(growing, "100%", workspaces=False)
    with caplog.at_level(logging.WARNING), checkmate.tf2.memory_meter():
        ours(x)
    assert "the first step was not measured" in caplog.text


def test_iterations_run_one_by_one() -> None:
    x = tf.zeros([STEPS, 32, WIDTH])
    plan = planned(repeated(), "100%").plan(x)
    replay = emit(plan.traced.captured, plan.program)
    loops = [op for op in replay.function.graph.get_operations() if op.type in LOOPS]
    assert [op.get_attr("parallel_iterations") for op in loops] == [1, 1]

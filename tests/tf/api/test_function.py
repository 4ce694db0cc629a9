"""A planned function has the results and effects of the plain one, and stays within its budget."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import checkmate.tf2
from checkmate import InfeasibleBudgetError
from checkmate_tf import UnsupportedFunctionError
from checkmate_tf.running.emit import emit
from checkmate_tf.running.program import Program
from checkmate_tf.tracing.step_graph import TracedGraph

CHEAP: dict[str, Any] = {"solver": "heuristics", "cost_model": "flops", "workspaces": False}
State = list[np.ndarray[Any, Any]]


class Network:
    """A convolutional network with batch norm and dropout, and a step of it."""

    def __init__(self) -> None:
        keras.utils.set_random_seed(0)
        stack: list[layers.Layer] = [keras.Input((16, 16, 3))]
        for _ in range(4):
            stack += [layers.Conv2D(16, 3, padding="same"), layers.BatchNormalization(), layers.ReLU()]
        self.model = keras.Sequential([*stack, layers.Dropout(0.2), layers.Flatten(), layers.Dense(10)])
        self.optimizer = keras.optimizers.Adam()
        self.optimizer.build(self.model.trainable_variables)
        self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.batch = (
            tf.random.stateless_normal([8, 16, 16, 3], [1, 2]),
            tf.random.stateless_uniform([8], [1, 2], 0, 10, tf.int32),
        )

    def step(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = self.loss(y, self.model(x, training=True))
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
        return loss

    def planned(self, budget: str) -> checkmate.tf2.PlannedFunction:
        return checkmate.tf2.function(self.step, budget=budget, time_limit=5)

    def after(self, step: Callable[..., tf.Tensor], steps: int = 3) -> State:
        """The losses of some steps, and all variables after them."""
        losses = [step(*self.batch).numpy() for _ in range(steps)]
        return [*losses, *(v.numpy() for v in (*self.model.variables, *self.optimizer.variables))]


def test_every_budget_gives_the_bits_of_the_unscheduled_step(
    unscheduled: Callable[[TracedGraph], Program],
) -> None:
    plain = Network()
    traced = plain.planned("100%").plan(*plain.batch).traced
    reference = emit(traced.captured, unscheduled(traced))
    expected = plain.after(lambda x, y: reference(x, y)[0])
    for budget in ("100%", "60%"):
        network = Network()
        found = network.after(network.planned(budget))
        assert all(np.array_equal(a, b) for a, b in zip(expected, found, strict=True))


def test_the_measured_peak_is_within_the_budget_and_no_more_than_expected() -> None:
    network = Network()
    step = network.planned("60%")
    plan = step.plan(*network.batch)
    step(*network.batch)
    with checkmate.tf2.memory_meter(network.model, network.optimizer, *network.batch) as meter:
        step(*network.batch)
    assert meter.peak <= plan.solution.problem.budget
    assert 0.9 * plan.expected <= meter.peak <= plan.expected  # within 2 % on larger networks
    assert plan.solution.overhead > 0


def test_the_error_for_an_infeasible_budget_names_one_that_works() -> None:
    network = Network()
    with pytest.raises(InfeasibleBudgetError, match="the least budget known to work is") as caught:
        network.planned("1 MB")(*network.batch)
    assert caught.value.minimum is not None
    network.planned(str(caught.value.minimum))(*network.batch)


def test_the_batch_of_the_first_call_is_not_kept() -> None:
    planned = checkmate.tf2.function(lambda x: tf.reduce_sum(x * x), budget="100%", cost_model="flops")
    batch = tf.ones([4, 4])
    planned(batch)
    gone = weakref.ref(batch)
    del batch
    gc.collect()
    assert gone() is None


def test_stages_are_reported_and_plans_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    steps: list[str] = []
    step = checkmate.tf2.function(
        lambda x: tf.reduce_sum(x * x),
        budget="100%",
        cost_model="flops",
        workspaces=False,
        on_progress=lambda report: steps.append(report.step),
    )
    with caplog.at_level(logging.INFO, "checkmate_tf"):
        step(tf.ones([2048]))
    stages = ["tracing", "rewriting the graph", "reading the graph", "counting bytes", "solving"]
    assert steps[: len(stages)] == stages
    assert steps[-3:] == ["counting bytes", "building the function", "running the first step"]
    assert "planned for TensorSpec(shape=(2048,)" in caplog.text


SIZES = [32, 64, 56, 32, 64]
"""Batches in turn."""


@pytest.fixture(scope="module")
def in_turn() -> list[checkmate.tf2.StepPlan]:
    """The plans of batches of all :data:`SIZES`, each when its turn comes."""
    network = Network()
    step = network.planned("55%")
    x, y = (tf.repeat(t, 8, axis=0) for t in network.batch)
    return [step.plan(x[:n], y[:n]) for n in SIZES]


def test_a_share_grows_with_the_largest_step_so_far_and_never_falls(
    in_turn: list[checkmate.tf2.StepPlan],
) -> None:
    small, large, *later = (plan.solution.problem.budget for plan in in_turn)
    assert small < large
    assert later == [large] * 3
    assert all(plan.expected <= plan.solution.problem.budget for plan in in_turn)


def test_a_smaller_step_recomputes_less_than_the_larger_one(in_turn: list[checkmate.tf2.StepPlan]) -> None:
    small, large, nearly, again, _ = (plan.solution.overhead for plan in in_turn)
    assert 0 == again < nearly < large
    assert small > 0


def test_a_share_keeps_its_bytes_when_the_largest_step_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("checkmate_tf.api.function._MOST_KINDS", 1)
    step = checkmate.tf2.function(
        lambda x: tf.reduce_sum(tf.sin(x)), budget="100%", cost_model="flops", workspaces=False
    )
    large, small = (step.plan(tf.TensorSpec([n])).solution.problem.budget for n in (8192, 4096))
    assert small == large


def test_a_step_that_holds_more_than_is_counted_is_planned_again_with_room_for_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two measured runs are over; what the meter finds is made up."""
    w, x = tf.Variable(tf.eye(64)), tf.random.stateless_normal([1024, 64], [1, 2])

    @checkmate.tf2.function(budget="100%", workspaces=False)
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            cropped = tf.boolean_mask(x, tf.reduce_sum(x, 1) > -100.0)
            y = x
            for _ in range(8):
                y = tf.sin(tf.nn.relu(y @ w))
            loss = tf.reduce_sum(y**2) + tf.reduce_sum(tf.sin(cropped))
        w.assign_sub(1e-6 * tape.gradient(loss, w))
        return loss

    first = step.plan(x)
    budget = first.solution.problem.budget
    meter = nullcontext(SimpleNamespace(peak=budget + 2**10))
    monkeypatch.setattr("checkmate_tf.api.function.memory_meter", lambda *_, **__: meter)
    losses = [float(step(x)) for _ in range(2)]
    assert step.plans == (first,)
    losses.append(float(step(x)))
    (plan,) = step.plans
    assert plan.step.reserve == budget + 2**10 - first.expected
    assert plan.solution.problem.budget == budget
    assert "planned again with" in caplog.text
    assert losses[0] > losses[1] > losses[2]


def test_the_fifth_value_of_a_python_argument_brings_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    @checkmate.tf2.function(budget="100%", cost_model="flops", workspaces=False)
    def step(x: tf.Tensor, rate: float, name: str = "a") -> tf.Tensor:
        return tf.reduce_sum(x * rate)

    for n, rate in enumerate((0.5, 0.5, 0.25, 0.125, 2.0, 4.0, 8.0)):
        step(tf.ones([1024]), rate)
        step(tf.ones([1024 + n]), 0.5)
    assert caplog.text.count("pass values that change as tensors") == 1
    assert "such as 4.0" in caplog.text


def test_the_plans_of_32_kinds_of_arguments_are_kept() -> None:
    @checkmate.tf2.function(budget="100%", cost_model="flops", workspaces=False)
    def step(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(x * x)

    for n in range(2048, 2048 + 32):
        step(tf.ones([n]))
    first, second, *_ = step.plans
    step(tf.ones([2048]))
    step(tf.ones([4096]))
    assert len(step.plans) == 32
    assert first in step.plans
    assert second not in step.plans


@pytest.mark.measured
def test_inside_another_profiler_a_step_is_planned_for_the_time_being(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    network = Network()
    x, y = network.batch
    step = checkmate.tf2.function(network.step, budget="100%", cost_model="profiled", cache=False)
    with tf.profiler.experimental.Profile(str(tmp_path)):
        first = step.plan(x[:7], y[:7])
        assert step.plan(x[:7], y[:7]) is first
    assert "no op can be measured" in caplog.text
    assert (first.graph.cost_unit, step.plan(x[:7], y[:7]).graph.cost_unit) == ("flop", "s")


def test_it_runs_inside_another_function_in_the_order_of_the_calls() -> None:
    inside, alone = Network(), Network()
    step, other = inside.planned("60%"), alone.planned("60%")
    losses = tf.function(lambda x, y: (step(x, y), step(x, y)))(*inside.batch)
    assert [loss.numpy() for loss in losses] == [other(*alone.batch).numpy() for _ in range(2)]


def test_loops_on_tensors_run_as_by_tf_function() -> None:
    @checkmate.tf2.function(budget="100%", cost_model="flops")
    def step(x: tf.Tensor) -> tf.Tensor:
        while tf.reduce_sum(x) < 10:
            x = x * 2
        return x

    assert [float(step(tf.constant(x))) for x in (3.0, 40.0)] == [12.0, 40.0]


def test_results_are_computed_before_the_updates_even_if_traced_after_them() -> None:
    weights = [tf.Variable(tf.ones([64, 64])) for _ in range(3)]

    def step(y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            for w in weights:
                y = tf.nn.relu(y @ w)
            loss = tf.reduce_sum(y)
        for w, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            w.assign_sub(gradient)
        return loss, tf.argmax(y, axis=-1)

    step_of = checkmate.tf2.function(step, budget="100%", cost_model="flops", workspaces=False)
    traced = step_of.plan(tf.TensorSpec([512, 64])).traced
    (metric,) = (k for k, op in enumerate(traced.graph.ops) if op.name == "ArgMax")
    assert metric < min(traced.writes)


def test_a_step_under_a_strategy_is_refused_with_the_way_out() -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        w = tf.Variable(tf.ones([4, 4]))
    step = checkmate.tf2.function(lambda x: tf.reduce_sum(x @ w), budget="100%", cost_model="flops")
    with pytest.raises(UnsupportedFunctionError, match=r"MirroredStrategy.*outside of strategy\.scope"):
        strategy.run(step, args=(tf.ones([2, 4]),))


def test_a_failed_assertion_is_raised() -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        tf.debugging.assert_positive(x, "must be positive")
        return tf.reduce_sum(tf.tanh(x))

    with pytest.raises(tf.errors.InvalidArgumentError, match="must be positive"):
        checkmate.tf2.function(step, budget="100%", cost_model="flops", workspaces=False)(-tf.ones([64, 32]))


@tf.function(experimental_attributes={"_noinline": True})
def scaled(x: tf.Tensor, by: tf.Tensor) -> tf.Tensor:
    """Grappler makes one function of this and a constant argument."""
    return x * by


def test_steps_may_call_one_function_with_different_constants() -> None:
    x = tf.constant([1.0, 2.0])
    for by in (2.0, 3.0):
        step = checkmate.tf2.function(lambda x, by=by: scaled(x, tf.constant(by)), budget="8GiB", **CHEAP)
        np.testing.assert_array_equal(step(x), by * x)


def test_a_function_that_traced_a_planned_one_outlives_it() -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(lambda x: x < 10.0, lambda x: [scaled(x, tf.constant(2.0))], [x])[0]

    def traced() -> Any:
        planned = checkmate.tf2.function(step, budget="8GiB", **CHEAP)
        return tf.function(lambda x: planned(x) + 1.0).get_concrete_function(tf.TensorSpec([]))

    outer = traced()
    gc.collect()
    assert outer(tf.constant(3.0)) == 13.0

"""Ops inside branches are counted, run in a fixed order, and give the same bits.

A common branch: a ``LossScaleOptimizer`` updates in one if all gradients are finite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import checkmate.tf2
from checkmate_tf import PlannedFunction, StepPlan
from checkmate_tf.capture.function_capture import capture
from checkmate_tf.running.emit import emit
from checkmate_tf.running.program import Program
from checkmate_tf.tracing.step_graph import TracedGraph, trace

Unscheduled = Callable[[TracedGraph], Program]
Reference = Callable[[StepPlan], Callable[..., tf.Tensor]]
WIDTH = 384  # so that a weight is larger than 256 KiB, below which a buffer is not seen
BATCH = (tf.random.stateless_normal([64, WIDTH], [1, 2]), tf.zeros([64, 1]))
OVERFLOWS = (tf.fill([64, WIDTH], 6e4), BATCH[1])


@pytest.fixture(autouse=True)
def policy() -> Iterator[None]:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    yield
    keras.config.set_dtype_policy(before)


class Network:
    """A perceptron, most of whose bytes are weights and slots, with a loss scale that changes."""

    def __init__(self, **settings: Any) -> None:
        keras.utils.set_random_seed(0)
        stack = [layers.Dense(WIDTH, "relu") for _ in range(4)]
        self.model = keras.Sequential([keras.Input([WIDTH]), *stack, layers.Dense(1, dtype="float32")])
        inner = keras.optimizers.Adam(1e-4, **settings)
        self.optimizer = keras.optimizers.LossScaleOptimizer(inner, 2.0**10, dynamic_growth_steps=2)
        self.optimizer.build(self.model.trainable_variables)

    @property
    def variables(self) -> list[keras.Variable]:
        return [*self.model.variables, *self.optimizer.variables]

    def step(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.model(x, training=True) - y) ** 2)
            scaled = self.optimizer.scale_loss(loss)
        weights = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(scaled, weights), weights, strict=True))
        return loss

    def planned(self, budget: str) -> PlannedFunction:
        return checkmate.tf2.function(self.step, budget=budget, cost_model="flops", time_limit=2)


@pytest.fixture
def reference(unscheduled: Unscheduled) -> Reference:
    """(plan) ↦ its step, unscheduled."""

    def step(plan: StepPlan) -> Callable[..., tf.Tensor]:
        replay = emit(plan.traced.captured, unscheduled(plan.traced))
        return lambda *batch: replay(*batch)[0]

    return step


def after(network: Network, step: Callable[..., tf.Tensor]) -> list[bytes]:
    """Losses, and all variables after each step: the third has gradients that are not finite."""
    found = []
    for batch in (BATCH, BATCH, OVERFLOWS, BATCH):
        found.append(step(*batch).numpy().tobytes())
        found += [v.numpy().tobytes() for v in network.variables]
    return found


@pytest.mark.parametrize(
    "settings", [{}, {"global_clipnorm": 0.1}], ids=["adam", "clipping by the global norm"]
)
def test_loss_scaling_keeps_its_bits_and_the_budget(settings: dict[str, Any], reference: Reference) -> None:
    plain, network = Network(**settings), Network(**settings)
    step = network.planned(f"{plain.planned('1GiB').plan(*BATCH).needed}B")
    plan = step.plan(*BATCH)
    assert "not counted" not in str(plan.report())
    assert after(network, step) == after(plain, reference(plain.planned("1GiB").plan(*BATCH)))
    assert network.optimizer.dynamic_scale.numpy() == 2.0**10  # doubled once, halved once
    peaks = {}
    for name, batch in (("update", BATCH), ("skip", OVERFLOWS)):
        with checkmate.tf2.memory_meter(network.variables, batch) as meter:
            step(*batch)
        peaks[name] = meter.peak
    assert max(peaks.values()) <= plan.solution.problem.budget
    assert peaks["update"] == pytest.approx(plan.expected, rel=0.02)


def test_ops_outside_branches_are_recomputed(reference: Reference) -> None:
    plain, network = Network(), Network()
    large = tuple(tf.repeat(x, 24, axis=0) for x in BATCH)  # so that most bytes are activations
    whole = plain.planned("1GiB").plan(*large)
    step = network.planned(f"{whole.needed * 22 // 25}B")
    plan = step.plan(*large)
    assert plan.solution.overhead > 0
    expected = reference(whole)
    for _ in range(3):
        assert step(*large).numpy() == expected(*large).numpy()
    assert all(
        np.array_equal(a.numpy(), b.numpy()) for a, b in zip(network.variables, plain.variables, strict=True)
    )
    with checkmate.tf2.memory_meter(network.variables, large) as meter:
        step(*large)
    assert meter.peak <= plan.solution.problem.budget
    assert meter.peak == pytest.approx(plan.expected, rel=0.02)


def test_the_branch_that_holds_most_is_counted_branches_of_branches_included() -> None:
    w, seen = tf.Variable(tf.random.stateless_normal([512, 512], [1, 2]) / 30), tf.Variable([0, 0, 0])

    def wide(x: tf.Tensor) -> tf.Tensor:
        """Holds three squares beside its argument."""
        seen[0].assign(seen[0] + 1)
        y, z = tf.nn.softmax(x @ w), tf.nn.softmax(x @ w @ w)
        return tf.cond(tf.reduce_sum(y) > 1e9, lambda: y, lambda: y @ z)

    def narrow(x: tf.Tensor) -> tf.Tensor:
        seen[1].assign(seen[1] + 1)
        return tf.sin(x)

    def step(x: tf.Tensor, kind: tf.Tensor) -> Any:
        y = tf.nn.softmax(x @ w)
        y = tf.switch_case(kind, [lambda: wide(y), lambda: narrow(y), lambda: y])
        seen[2].assign(seen[2] + 1)
        return tf.reduce_sum(tf.nn.softmax(y @ w))

    x = tf.random.stateless_normal([512, 512], [3, 4])
    planned = checkmate.tf2.function(step, budget="100%", cost_model="flops")
    plan = planned.plan(x, tf.constant(0))
    found, peaks = [], []
    for kind in map(tf.constant, range(3)):
        found.append(planned(x, kind).numpy())
        with checkmate.tf2.memory_meter(w, x) as meter:
            planned(x, kind)
        peaks.append(meter.peak)
    assert found == [tf.function(step)(x, tf.constant(kind)).numpy() for kind in range(3)]
    assert seen.numpy().tolist() == [2 + 1, 2 + 1, 3 * 2 + 3]
    assert max(peaks) == peaks[0] <= plan.solution.problem.budget
    assert peaks[0] == pytest.approx(plan.expected, rel=0.02)
    assert peaks[0] >= peaks[1] + 2**20


def test_constants_of_a_branch_are_counted() -> None:
    """Grappler makes a constant of the zeros to which an accumulator is reset; it stays when others come."""
    w, total = (tf.Variable(tf.zeros([512, 512])) for _ in range(2))

    def update() -> None:
        w.assign_sub(total)
        total.assign(tf.zeros([512, 512]))

    def step(x: tf.Tensor, last: tf.Tensor) -> tf.Tensor:
        total.assign_add(tf.matmul(x, x))
        tf.cond(last, lambda: [update(), x[0, 0]][1], lambda: x[0, 0])
        return tf.reduce_sum(x)

    x = tf.ones([512, 512])
    planned = checkmate.tf2.function(step, budget="8MiB", cost_model="flops")
    plan = planned.plan(x, tf.constant(True))
    for last in (True, False):
        with checkmate.tf2.memory_meter(w, total, x) as meter:
            planned(x, tf.constant(last))
    assert plan.graph.fixed_size >= 4 * 512 * 512
    assert meter.peak == pytest.approx(plan.expected, rel=0.02)
    assert meter.peak <= plan.expected


def test_effects_in_a_branch_happen_once_and_in_order(capfd: pytest.CaptureFixture[str]) -> None:
    noted: list[str] = []
    w = tf.Variable(tf.ones([64, 64]))

    def note(name: str) -> None:
        tf.numpy_function(lambda: noted.append(name) or np.int32(0), [], tf.int32)

    def update(x: tf.Tensor) -> tf.Tensor:
        for name in "zya":
            note(name)
            tf.print(name, tf.reduce_sum(w))
            w.assign(w + x)
        return w @ x

    def step(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.cond(tf.reduce_sum(x) > 0, lambda: update(x), lambda: x) @ w)

    planned = checkmate.tf2.function(step, budget="100%", cost_model="flops", workspaces=False)
    planned.plan(x := tf.ones([64, 64]))
    assert planned(x).numpy() == 4.0 * 4.0 * 64**4
    assert noted == list("zya")
    assert capfd.readouterr().err.splitlines()[-3:] == ["z 4096", "y 8192", "a 12288"]


def test_branches_are_captured_with_the_shapes_of_their_arguments() -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        return tf.cond(tf.reduce_sum(x) > 0, lambda: tf.matmul(x, x), lambda: x)

    traced = trace(capture(tf.function(step).get_concrete_function(tf.TensorSpec([64, 64]))))
    ((square, same),) = traced.branches.values()
    assert [op.type for op in square.heavy] == ["MatMul"]
    assert square.graph.tensors[-1].size == 4 * 64 * 64
    assert list(same.heavy) == []
    assert "MatMul" in [op.type for op in traced.heavy]


def test_the_report_names_ops_whose_bytes_are_not_counted() -> None:
    w, x = tf.Variable(tf.eye(32)), tf.ones([64, 32])

    def step(x: tf.Tensor, grows: bool) -> tf.Tensor:
        y = tf.cond(tf.reduce_sum(x) > 0, lambda: x @ w, lambda: x)
        if grows:
            y = tf.concat([y, y[: tf.cast(tf.reduce_sum(y), tf.int32)]], axis=0)
        return tf.reduce_sum(y @ w)

    planned = checkmate.tf2.function(step, budget="100%", cost_model="flops", workspaces=False)
    assert "not counted" not in str(planned.plan(x, False).report())
    report = str(planned.plan(x, True).report())
    assert "ops hold, because their number depends on data" in report

"""Every valid schedule gives the same bits, whatever it recomputes and in whatever order it runs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import checkmate.tf2
from checkmate import DFGraph, InfeasibleBudgetError
from checkmate.analysis import sequence_to_run, with_writes_settled
from checkmate_tf.capture.function_capture import Captured, capture
from checkmate_tf.costs.events import TraceRecorder
from checkmate_tf.memory.residency import resident_bytes
from checkmate_tf.running.emit import emit
from checkmate_tf.running.program import Program, program
from checkmate_tf.tracing.step_graph import TracedGraph, trace

CHEAP: dict[str, Any] = {"cost_model": "flops", "workspaces": False, "time_limit": 1, "cache": False}
SIDE = 40  # so that the tensors of a layer are large: 4 * SIDE * SIDE bytes
Unscheduled = Callable[[TracedGraph], Program]


def step() -> Any:
    """Two layers with dropout, batch norm and one weight in common; momentum, and variables read again."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([layers.Dropout(0.3), layers.Dense(SIDE, "relu"), layers.BatchNormalization()])
    model.build((SIDE, SIDE))
    shared = tf.Variable(tf.random.normal([SIDE, SIDE]))
    total = tf.Variable(0.0)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)

    @tf.function
    def train(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            y = model(tf.tanh(x @ shared), training=True) @ shared
            loss = tf.reduce_mean(tf.nn.relu(y) ** 2)
        weights = [*model.trainable_variables, shared]
        *of_model, of_shared = tape.gradient(loss, weights)
        optimizer.apply_gradients(zip(of_model, model.trainable_variables, strict=True))
        before = tf.reduce_sum(shared)
        shared.assign_sub(0.1 * of_shared)
        shared.assign(tf.clip_by_norm(shared, 30.0))
        total.assign_add(loss)
        return loss, before + tf.reduce_sum(shared) + total

    return train


@pytest.fixture(scope="module")
def stock() -> Any:
    """TensorFlow's own function."""
    return step()


@pytest.fixture(scope="module")
def traced(stock: Any) -> TracedGraph:
    return trace(capture(stock.get_concrete_function(tf.TensorSpec([SIDE, SIDE]))))


def ordered(traced: TracedGraph) -> tuple[DFGraph, list[int]]:
    return with_writes_settled(traced.graph, traced.writes, traced.in_sequence)


def random_sequence(graph: DFGraph, rng: random.Random) -> list[int]:
    """A valid sequence: ops in a random order, tensors freed at random."""
    resident, done, sequence = set(graph.inputs), set[int](), list[int]()
    once = {v for v, op in enumerate(graph.ops) if not op.recomputable}

    def run(v: int) -> None:
        for t in graph.ops[v].inputs:
            if t not in resident:
                run(int(graph.producer[t]))
        sequence.append(v)
        done.add(v)
        resident.update(graph.ops[v].outputs)

    def ready() -> Iterator[int]:
        """Ops that have not run, and whose producers all have."""
        for v, op in enumerate(graph.ops):
            if v not in done and all(p < 0 or p in done for p in graph.producer[list(op.inputs)].tolist()):
                yield v

    while found := list(ready()):
        run(rng.choice(found))
        forgettable = [t for t in resident if graph.producer[t] >= 0 and int(graph.producer[t]) not in once]
        resident -= {t for t in forgettable if t not in graph.outputs and rng.random() < 0.3}
    return sequence


def results(captured: Captured, runs: Program, steps: int = 3) -> list[bytes]:
    """The results of some steps, and the variables after them, which are restored."""
    variables = captured.variables
    start = [v.numpy() for v in variables]
    replay, x = emit(captured, runs), tf.random.stateless_normal([SIDE, SIDE], [3, 4])
    found = [value.numpy().tobytes() for _ in range(steps) for value in replay(x)]
    found += [v.numpy().tobytes() for v in variables]
    for v, value in zip(variables, start, strict=True):
        v.assign(value)
    return found


def test_random_sequences_give_the_bits_of_the_unscheduled_step(
    traced: TracedGraph, unscheduled: Unscheduled
) -> None:
    graph, order = ordered(traced)
    writes = {k: traced.writes[v] for k, v in enumerate(order) if v in traced.writes}
    expected = results(traced.captured, unscheduled(traced))
    repeats = 0
    for seed in range(6):
        sequence = sequence_to_run(graph, random_sequence(graph, random.Random(seed)), writes)
        repeats += len(sequence) - graph.n_ops
        assert results(traced.captured, program(traced, [order[v] for v in sequence])) == expected
    assert repeats > 20


def test_the_unscheduled_step_is_that_of_tensorflow(
    traced: TracedGraph, stock: Any, unscheduled: Unscheduled
) -> None:
    captured, x = traced.captured, tf.random.stateless_normal([SIDE, SIDE], [3, 4])
    variables = captured.variables
    start = [v.numpy() for v in variables]
    replayed = results(captured, unscheduled(traced))
    expected = [value.numpy() for _ in range(3) for value in stock(x)]
    for mine, theirs in zip(replayed, expected, strict=False):
        np.testing.assert_allclose(np.frombuffer(mine, theirs.dtype), theirs.ravel(), rtol=1e-5)
    for v, value in zip(variables, start, strict=True):
        v.assign(value)


def test_an_op_that_writes_over_its_input_makes_no_new_buffer() -> None:
    def chain(x: tf.Tensor) -> tf.Tensor:
        return tf.matmul(tf.exp(tf.sin(tf.matmul(x, x))), x)

    traced = trace(capture(tf.function(chain).get_concrete_function(tf.TensorSpec([SIDE, SIDE]))))
    runs = program(traced, range(traced.graph.n_ops))
    size = 4 * SIDE * SIDE
    assert resident_bytes(runs, {}).max() == 2 * size
    assert resident_bytes(runs, {runs.copies[0].op: 7 * size}).max() == 8 * size


def test_no_large_tensor_is_held_for_its_shape() -> None:
    def shape_only(x: tf.Tensor) -> tf.Tensor:
        return tf.zeros(tf.shape(tf.matmul(x, x)))

    captured = capture(tf.function(shape_only).get_concrete_function(tf.TensorSpec([SIDE, SIDE])))
    assert {op.type for op in captured.ops}.isdisjoint({"Shape", "ShapeN"})


def test_every_op_runs_as_often_as_it_is_scheduled() -> None:
    kernels = [tf.Variable(tf.random.stateless_normal([3, 3, 8, 8], [k, 1]) / 9) for k in range(6)]

    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            for k in kernels:
                x = tf.nn.gelu(tf.nn.conv2d(x, k, 1, "SAME"))
            loss = tf.reduce_sum(x**2)
        return loss, tape.gradient(loss, kernels)

    x = tf.random.stateless_normal([4, 16, 16, 8], [1, 1])
    with pytest.raises(InfeasibleBudgetError) as caught:
        checkmate.tf2.function(step, budget="1 B", **CHEAP).plan(x)
    planned = checkmate.tf2.function(step, budget=str(caught.value.minimum), **CHEAP)
    planned(x)
    copies = [c.op.type for c in planned.plans[-1].program.copies if c.op.type.startswith("Conv2D")]
    with TraceRecorder() as recorder:
        planned(x)
    ran = sum(n for name, n in recorder.trace.counts.items() if name.split("/")[-1].startswith("Conv2D"))
    assert copies.count("Conv2D") > 6
    assert ran == len(copies) >= copies.count("Conv2D") + 2 * 6 - 1  # the gradients of all, except that of x

"""Ops that reuse a dying input: the graph counts what TensorFlow's kernels hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import tensorflow as tf

import checkmate.tf2
from checkmate import DFGraph, InfeasibleBudgetError, Schedule, simulate

SIDE = 128
SIZE = 4 * SIDE * SIDE
SPEC = tf.TensorSpec([SIDE, SIDE])
Step = Callable[[tf.Tensor], tf.Tensor]


def graph_of(step: Step) -> DFGraph:
    return checkmate.tf2.function(step, budget="100%", cost_model="flops").plan(SPEC).graph


def test_a_sum_is_written_over_the_operand_that_dies() -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        a, b = x @ x, x @ tf.transpose(x)
        c = b @ b
        return (a + b) @ a @ c

    graph = graph_of(step)
    (v,) = (v for v, op in enumerate(graph.ops) if op.reuses)
    order = Schedule.from_sequence(graph, range(graph.n_ops))
    at = order.codes.tolist().index(v)
    assert simulate(graph, order).reused_at(at) == set(graph.ops[v].reuses)
    assert simulate(graph, order).memory[at] == graph.base_size + 3 * SIZE  # a, c, and the sum over b


def test_an_argument_and_a_variable_are_never_written_over() -> None:
    weight = tf.Variable(tf.ones([SIDE, SIDE]))
    graph = graph_of(lambda x: tf.nn.relu(x) @ tf.nn.relu(weight))
    assert not any(set(op.reuses) & set(graph.inputs) for op in graph.ops)


def test_a_product_of_matrices_is_not_written_over_its_operands() -> None:
    graph = graph_of(lambda x: ((x @ x) @ x) @ x)
    assert not any(op.reuses for op in graph.ops)


def residual(x: tf.Tensor) -> tf.Tensor:
    """The gradient of layers with shortcuts, whose gradients are sums."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x
        for _ in range(4):
            y += tf.tanh(y @ y) @ y
        loss = tf.reduce_sum(y * y)
    return tape.gradient(loss, x)


def test_a_step_stays_within_a_budget_that_needs_kernels_in_place() -> None:
    x = tf.random.stateless_normal([SIDE, SIDE], [0, 0]) / SIDE
    with pytest.raises(InfeasibleBudgetError) as caught:
        checkmate.tf2.function(residual, budget=SIZE, cost_model="flops")(x)
    least = caught.value.minimum
    assert least is not None
    planned = checkmate.tf2.function(residual, budget=least, cost_model="flops")
    assert (planned(x).numpy() == tf.function(residual)(x).numpy()).all()
    with checkmate.tf2.memory_meter(x) as meter:
        planned(x)
    assert meter.peak <= least
    graph = planned.plan(x).graph
    assert checkmate.floor(graph).size < checkmate.floor(without_reuses(graph)).size


def without_reuses(graph: DFGraph) -> DFGraph:
    return replace(graph, ops=tuple(replace(op, reuses=()) for op in graph.ops))

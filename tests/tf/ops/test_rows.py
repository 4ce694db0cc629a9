"""Rows of a tensor are in its buffer: the addresses say so, and the budget counts it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

import checkmate.tf2
from checkmate import InfeasibleBudgetError
from checkmate_tf.capture.function_capture import capture
from checkmate_tf.ops.storages import aliased_input
from checkmate_tf.private import grappler_off
from checkmate_tf.tracing.step_graph import trace

PARTS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "split": lambda x: tf.split(x, 4)[1],
    "split columns": lambda x: tf.split(x, 2, axis=1)[0],
    "split unevenly": lambda x: tf.split(x, [2, 6], axis=0)[1],
    "unstack": lambda x: tf.unstack(x)[3],
    "unstack columns": lambda x: tf.unstack(x, axis=1)[0],
    "slice": lambda x: tf.slice(x, [2, 0], [4, x.shape[1]]),
    "slice of columns": lambda x: tf.slice(x, [2, 0], [4, 2]),
    "rows": lambda x: x[1:3],
    "row": lambda x: x[3],
    "last row": lambda x: x[-1],
    "some row": lambda x: x[tf.cast(tf.round(x[0, 0] * 0), tf.int32)],
    "whole columns": lambda x: x[1:3, :],
    "named columns": lambda x: x[2:, 0 : x.shape[1]],
    "ellipsis": lambda x: x[1:, ...],
    "added": lambda x: x[tf.newaxis, 1:],
    "added last": lambda x: x[1:, :, tf.newaxis],
    "column": lambda x: x[:, 0],
    "columns": lambda x: x[1:, 2:],
    "every other": lambda x: x[::2],
    "backwards": lambda x: x[1:, ::-1],
    "last columns": lambda x: x[..., 2:],
}


def address(tensor: tf.Tensor) -> int:
    return int(np.asarray(memoryview(tensor)).__array_interface__["data"][0])


@pytest.mark.parametrize("columns", [8, 16, 24, 32])
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64], ids=str)
@pytest.mark.parametrize("part", PARTS)
def test_a_part_shares_the_buffer_where_it_is_said_to(part: str, dtype: tf.DType, columns: int) -> None:
    @tf.function(autograph=False)
    def parts(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        y = x + 1
        return y, PARTS[part](y)

    x = tf.cast(tf.reshape(tf.range(8 * columns), [8, columns]), dtype)
    with grappler_off():
        whole, found = parts(x)
    inside = 0 <= address(found) - address(whole) < 8 * columns * dtype.size
    function = parts.get_concrete_function(x)
    op = next(t.op for t in function.outputs[1:])
    while op.type == "Identity":
        op = op.inputs[0].op
    assert (aliased_input(op, 0) is not None) == inside


X = tf.random.stateless_normal([16, 4096], [1, 1])


def step(x: tf.Tensor) -> tf.Tensor:
    """The product of ten rows of 16 KiB, which outlive the tensors of 256 KiB that they are from."""
    rows = [tf.sin(x * float(k))[k] for k in range(10)]
    while len(rows) > 1:
        rows = [a * b for a, b in zip(rows[::2], rows[1::2], strict=False)] + rows[len(rows) // 2 * 2 :]
    return tf.reduce_sum(rows[0])


def test_a_product_that_is_written_over_a_row_keeps_the_whole_tensor() -> None:
    with pytest.raises(InfeasibleBudgetError) as caught:
        checkmate.tf2.function(step, budget="1KiB", cost_model="flops", workspaces=False)(X)
    least = caught.value.minimum
    assert least is not None
    planned = checkmate.tf2.function(step, budget=least, cost_model="flops", workspaces=False)
    planned(X)
    with checkmate.tf2.memory_meter(X) as meter:
        planned(X)
    assert meter.peak <= least


def test_a_row_keeps_the_whole_tensor() -> None:
    x = X
    planned = checkmate.tf2.function(step, budget="4MiB", cost_model="flops", workspaces=False)
    plan = planned.plan(x)
    planned(x)
    with checkmate.tf2.memory_meter(x) as meter:
        planned(x)
    assert 10 * 262144 < meter.peak <= plan.expected
    traced = trace(capture(tf.function(step).get_concrete_function(x)))
    assert "StridedSlice" not in {op.type for op in traced.heavy}

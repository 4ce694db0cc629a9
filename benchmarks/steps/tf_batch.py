"""One whole training step of a network of the paper in Keras, at a batch, within a physical limit.

The limit is on TensorFlow's allocator, as in :mod:`steps.tf_limit`: beyond it the step ends with an
error, or the process dies. The optimizer is plain gradient descent: it has no state.

- ``stock``: the step as a ``tf.function``.
- ``remat``: the same with ``keras.remat`` around each block.
- ``ours``: ``checkmate.tf2.function``, its budget the limit, of the allocator's bytes. A schedule that costs
  more than one more forward pass, in FLOPs, is not run.
- ``losses``: all three for two steps, without a limit, ours within its least budget.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import checkmate
import checkmate.tf2
from steps.process import Row, answer, one_more_pass
from steps.tf_limit import FIRST_REGION, MIB, taken
from zoo.keras_nets import NETS, in_blocks
from zoo.small_keras import Case

_RATE = 1e-3
_STEPS = 2


def measure(task: Row) -> Row:
    """The loss of one step by one method, and its CPU seconds.

    Args:
        task: ``network``, ``side`` of its images in pixels, ``batch``, ``method``, and ``time_limit`` of the
            solver in seconds.
    """
    limit = taken()
    if task["method"] == "losses":
        return _losses(task)
    case = _case(task)
    step, row = tf.function(case.step), {}
    if task["method"] == "ours":
        step = _planned(case, task, limit * MIB, counts="allocator", reserve=FIRST_REGION * MIB)
        start = time.perf_counter()
        plan = step.plan(*case.batch)
        row = {"plan_s": time.perf_counter() - start, "expected": plan.expected}
        row |= one_more_pass(plan.solution)
        if row["cost"] > row["most_cost"]:
            return row
    start_s = time.process_time()
    loss = float(step(*case.batch))
    return row | {"loss": loss, "cpu_s": time.process_time() - start_s}


def _case(task: Row) -> Case:
    """The network, recomputed in blocks if that is the method, and its batch."""
    keras.utils.set_random_seed(0)
    model = NETS[task["network"]](False, side=task["side"])
    shape = [task["batch"], *model.input_shape[1:]]
    x = tf.random.stateless_normal(shape, [0, 0])
    classes = model.output_shape[-1]
    y = tf.random.stateless_uniform([shape[0], *model.output_shape[1:-1]], [0, 1], 0, classes, tf.int32)
    if task["method"] == "remat":
        model = in_blocks(model, _recomputed)
    optimizer = keras.optimizers.SGD(_RATE)
    optimizer.build(model.trainable_variables)
    return Case(name=task["network"], model=model, optimizer=optimizer, batch=(x, y))


def _recomputed(block: keras.Model) -> keras.Model:
    """The block, changed: ``keras.remat`` recomputes it in the backward pass."""
    call = block.call

    def recomputed(inputs: Any, **settings: Any) -> Any:
        return keras.remat(lambda *given: call(list(given), **settings))(*inputs)

    block.call = recomputed
    return block


def _planned(case: Case, task: Row, budget: int, **settings: Any) -> Any:
    return checkmate.tf2.function(
        case.step,
        budget=budget,
        cost_model="flops",
        workspaces=True,
        time_limit=task["time_limit"],
        **settings,
    )


def _losses(task: Row) -> Row:
    """The loss of the last of some steps by each method."""

    def last(method: str, made: Callable[[Case], Any]) -> float:
        case = _case(task | {"method": method})
        step = made(case)
        return [float(step(*case.batch)) for _ in range(_STEPS)][-1]

    def within_least(case: Case) -> Any:
        try:
            _planned(case, task, 2**10).plan(*case.batch)
        except checkmate.InfeasibleBudgetError as error:
            return _planned(case, task, int(np.ceil(error.minimum)))
        raise AssertionError("a step within a KiB")

    plain = {method: last(method, lambda case: tf.function(case.step)) for method in ("stock", "remat")}
    return plain | {"ours": last("ours", within_least)}


if __name__ == "__main__":
    answer(measure)

"""Makes, runs and drops steps, each for another batch size: ``python dropped_steps.py planned|stock``.

Writes the growth of the process in bytes, and the number of functions that TensorFlow keeps.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from resource import getpagesize
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context  # noqa: TID251 - functions can't be listed otherwise

import checkmate.tf2

WARM, STEPS, BRANCHES = 2, 10, 8
WEIGHT = tf.Variable(tf.eye(8))


def step(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """A loss and a gradient, with branches; Grappler turns the gradient of each branch into a function."""
    with tf.GradientTape() as tape:
        for _ in range(BRANCHES):
            x = tf.cond(tf.reduce_sum(x) > 0, lambda x=x: tf.tanh(x @ WEIGHT), lambda x=x: x @ WEIGHT)
        loss = tf.reduce_sum(x)
    return loss, tape.gradient(loss, WEIGHT)


def functions() -> set[str]:
    """The names of the functions that TensorFlow keeps, without its own wrappers of single ops."""
    return {name for name in context.context().list_function_names() if "__wrapped__" not in str(name)}


def resident() -> int:
    """Bytes of memory of the process, without those that the C library keeps for later."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * getpagesize()


def main(made: Callable[[Any], Callable[..., Any]]) -> None:
    """Measure steps after a warm-up of a few."""
    for batch in range(1, 1 + WARM + STEPS):
        if batch == 1 + WARM:
            bytes_before, functions_before = resident(), functions()
        made(step)(tf.ones([batch, 8]))
    sys.stdout.write(f"{resident() - bytes_before} {len(functions() - functions_before)}")


if __name__ == "__main__":
    settings = {"solver": "heuristics", "cost_model": "flops", "workspaces": False, "cache": False}
    ways = {"planned": checkmate.tf2.function(budget="8GiB", **settings), "stock": tf.function}
    main(ways[sys.argv[1]])

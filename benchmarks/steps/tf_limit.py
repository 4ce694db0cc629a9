"""Whole training steps of Keras networks under a physical limit: the memory of TensorFlow's allocator.

The limit is the environment's, ``TF_CPU_BFC_MEM_LIMIT_IN_MB``. Beyond it the allocator refuses memory, and
the process dies or raises an error. The process takes all of it at its start, as a GPU's allocator does:
otherwise the memory would come in regions, which tensors cannot cross.
"""

from __future__ import annotations

import os
import time

import tensorflow as tf

import checkmate
import checkmate.tf2
from steps.process import LEAST, Row, answer
from zoo import small_keras as zoo

NETWORKS: dict[str, tuple[str, Row]] = {
    "vgg": ("vgg", {"image": 64, "batch": 32}),
    "resnet": ("resnet", {"image": 64}),
    "densenet": ("densenet", {"image": 64}),
    "efficientnet": ("efficientnet", {"image": 64}),
    "unet": ("unet", {"image": 64, "batch": 32, "width": 16}),
    "unet-dropout": ("unet", {"image": 64, "batch": 32, "width": 16, "dropout": 0.1}),
    "transformer": ("transformer", {"length": 64, "batch": 64, "width": 64, "blocks": 4, "vocabulary": 200}),
    "mobilenet": ("MobileNet", {"image": 128}),
}
"""Network of :mod:`zoo.small_keras` or ``keras.applications``, and its sizes."""
MIB = 2**20
_STEPS = 3
FIRST_REGION = 2
"""MiB that TensorFlow has taken before: a region of its own for the smallest tensors."""


def taken() -> int:
    """Take all memory of the limit and give it back to the allocator; the limit in MiB, 0 = there is none."""
    limit = int(os.environ.get("TF_CPU_BFC_MEM_LIMIT_IN_MB", 0))
    if limit:
        tf.raw_ops.Empty(shape=[(limit - FIRST_REGION) * MIB], dtype=tf.uint8)
    return limit


def measure(task: Row) -> Row:
    """The losses of some steps by one method.

    Args:
        task: ``network``; ``method``, "plain", "checkmate" or, for the memory that both need, "needs";
            ``counts`` of the budget, which is the limit; ``time_limit`` of the solver, in seconds; maybe
            ``sizes``, in place of some of the network's own.
    """
    limit = taken()
    name, sizes = NETWORKS[task["network"]]
    sizes = sizes | task.get("sizes", {})
    case = zoo.CASES[name](**sizes) if name in zoo.CASES else zoo.application(name, **sizes)
    settings = {
        "counts": task["counts"],
        "time_limit": task["time_limit"],
        "reserve": FIRST_REGION * MIB,
    }
    if task["method"] == "needs":
        return _needs(case, settings)
    step = tf.function(case.step)
    if task["method"] == "checkmate":
        step = checkmate.tf2.function(case.step, budget=limit * MIB, **settings)
    start = time.perf_counter()
    row: Row = {"losses": [float(step(*case.batch)) for _ in range(_STEPS)]}
    row["seconds"] = time.perf_counter() - start
    if task["method"] == "checkmate":
        plan = step.plan(*case.batch)
        row |= {"expected": plan.expected, "overhead": plan.solution.overhead}
    return row


def _needs(case: zoo.Case, settings: Row) -> Row:
    """The memory of the plain step, and the least that is known to be enough, in bytes."""
    plan = checkmate.tf2.function(case.step, budget="100%", **settings).plan(*case.batch)
    try:
        checkmate.tf2.function(case.step, budget="1KiB", **settings).plan(*case.batch)
    except checkmate.InfeasibleBudgetError as error:
        return {"whole": plan.plain_peak, "least": error.minimum}
    raise AssertionError(f"a step within {LEAST} bytes")


if __name__ == "__main__":
    answer(measure)

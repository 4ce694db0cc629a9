"""Whole training steps of Keras networks in TensorFlow, Adam included, by each way to save memory.

- ``plain``: ``tf.function``.
- ``checkmate``: ``checkmate.tf2.function`` at a share of the plain peak, or within the least budget found;
  100 % is the peak of our replay in the order of the trace.
- ``recompute_grad``, ``remat``: ``tf.recompute_grad`` and ``keras.remat`` around every block; networks of
  ``keras.applications`` are cut into blocks at places that a single tensor crosses.
- ``RematScope``: ``keras.RematScope("full")`` around the building of the network and around each step.

Peaks are of live bytes after two steps. ``gradient_error``: the distance of the first step's gradients from
the plain ones, |g − g'| / |g'|; ``average_error``: the same for the model's other state, batch-norm averages
and seeds.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import checkmate
import checkmate.tf2
from steps.process import LEAST, Row, answer, timed
from zoo import small_keras as zoo

NETWORKS: dict[str, tuple[str, Row]] = {
    "unet": ("unet", {"image": 64, "width": 16}),
    "unet-dropout": ("unet", {"image": 64, "width": 16, "dropout": 0.1}),
    "transformer": ("transformer", {"length": 64, "batch": 16, "width": 64, "blocks": 4, "vocabulary": 200}),
    "vgg19": ("VGG19", {}),
    "mobilenet": ("MobileNet", {"image": 128}),
    "resnet50": ("ResNet50", {}),
    "densenet121": ("DenseNet121", {}),
}
"""Network of :mod:`zoo.small_keras` or ``keras.applications``, and its sizes."""


def measure(task: Row) -> Row:
    """Peak, time and gradients of one method, in this process.

    Args:
        task: ``network``, ``method``, ``share`` of the plain peak, ``small`` for networks of small images,
            ``time_limit`` of the solver and ``spend_s`` for timing, in seconds.
    """
    method = task["method"]
    plain = case_of(task)
    stock = tf.function(plain.step)
    stock(*plain.batch)
    after_one = state(plain)
    stock(*plain.batch)
    with checkmate.tf2.memory_meter(plain.variables, plain.batch) as meter:
        stock(*plain.batch)
    plain_peak = meter.peak
    with scope_of(method):
        case = case_of(task, method)
        step, facts = prepared(case, task, plain_peak)
        start = time.perf_counter()
        step(*case.batch)
        facts["first_step_s"] = time.perf_counter() - start
        exactness = errors(state(case), after_one)
        step(*case.batch)
        with checkmate.tf2.memory_meter(case.variables, case.batch) as meter:
            step(*case.batch)
        times = timed(lambda: step(*case.batch), lambda: stock(*plain.batch), task["spend_s"])
    peaks = {"peak": meter.peak, "plain_peak": plain_peak, "resident": meter.base}
    return peaks | times | exactness | facts


def case_of(task: Row, method: str = "plain") -> zoo.Case:
    """The network; if the method is a peer, with its blocks wrapped for recomputation."""
    name, sizes = NETWORKS[task["network"]]
    if task["small"] and name in zoo.CASES:
        sizes = {"dropout": sizes["dropout"]} if "dropout" in sizes else {}
    wrap = wrapper(method) if method in ("recompute_grad", "remat") else None
    if name in zoo.CASES:
        return zoo.CASES[name](**sizes, wrap=wrap)
    case = zoo.application(name, **sizes)
    return case if wrap is None else zoo.in_blocks(case, wrap)


def wrapper(method: str) -> Callable[[Any], Any]:
    """Replaces a block by a layer that recomputes it."""
    recomputing = tf.recompute_grad if method == "recompute_grad" else keras.remat

    class Recomputed(keras.layers.Layer):  # type: ignore[misc]
        """A block that is recomputed in the backward pass."""

        def __init__(self, block: Any) -> None:
            super().__init__()
            self.block = block

        def build(self, shape: Any) -> None:
            """Make the variables of the block."""
            if not self.block.built:
                self.block.build(shape)

        def call(self, x: Any, training: bool | None = None) -> Any:
            """Apply it."""
            return recomputing(lambda x: self.block(x, training=training))(x)

        def compute_output_spec(self, x: Any, training: bool | None = None) -> Any:
            """Shape and dtype of the result."""
            del training
            return keras.KerasTensor(self.block.compute_output_shape(x.shape), "float32")

    return Recomputed


@contextlib.contextmanager
def scope_of(method: str) -> Iterator[None]:
    """The context for building the network and running its steps."""
    with keras.RematScope("full") if method == "RematScope" else contextlib.nullcontext():
        yield


def prepared(case: zoo.Case, task: Row, plain_peak: int) -> tuple[Callable[..., Any], Row]:
    """The step of a method, and the fields that the method adds to the row."""
    if task["method"] != "checkmate":
        return tf.function(case.step), {}
    share = task["share"]
    budget: int | str = "100%" if share == 1.0 else max(int(share * plain_peak), 1)
    timing = OpTiming()
    start, start_cpu = time.perf_counter(), time.process_time()
    step = checkmate.tf2.function(case.step, budget=budget, time_limit=task["time_limit"])
    try:
        plan = step.plan(*case.batch)
    except checkmate.InfeasibleBudgetError as error:
        if share != LEAST or error.minimum is None:
            raise
        step = checkmate.tf2.function(case.step, budget=error.minimum, time_limit=task["time_limit"])
        plan = step.plan(*case.batch)
    planned, planned_cpu = time.perf_counter() - start, time.process_time() - start_cpu
    solution = plan.solution
    return step, {
        "budget": solution.problem.budget,
        "bound": solution.peak,
        "expected": plan.expected,
        "overhead": solution.overhead,
        "gap": solution.gap,
        "ops": plan.graph.n_ops,
        "tensorflow_ops": len(plan.traced.captured.ops),
        "solver": solution.solver,
        "plan_s": planned,
        "plan_cpu_s": planned_cpu,
        "measuring_ops_s": timing.seconds,
        "solver_s": solution.seconds,
    }


class OpTiming(logging.Handler):
    """Reads the seconds of the timing of ops from the log."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0
        log = logging.getLogger("checkmate.framework.pricing")
        log.setLevel(logging.INFO)
        log.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Take the seconds from the record that has them."""
        if record.msg.startswith("timed") and isinstance(record.args, tuple):
            self.seconds += float(record.args[-1])  # type: ignore[arg-type]


def state(case: Any) -> tuple[list[Any], list[Any]]:
    """Adam's first slots, after one step a tenth of the gradients; and the model's other state."""
    return (
        [v.numpy() for v in case.optimizer._momentums],
        [v.numpy() for v in case.model.non_trainable_variables],
    )


def errors(ours: tuple[list[Any], list[Any]], theirs: tuple[list[Any], list[Any]]) -> Row:
    """The distance of two states."""
    return {"gradient_error": distance(ours[0], theirs[0]), "average_error": distance(ours[1], theirs[1])}


def distance(ours: list[Any], theirs: list[Any]) -> float:
    """|a − b| / |b| over all arrays together."""
    pairs = [(a.astype(np.float64), b.astype(np.float64)) for a, b in zip(ours, theirs, strict=True)]
    wrong = sum(float(np.square(a - b).sum()) for a, b in pairs)
    return math.sqrt(wrong / (sum(float(np.square(b).sum()) for _, b in pairs) or 1.0))


if __name__ == "__main__":
    answer(measure)

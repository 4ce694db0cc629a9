"""Layers that ``checkmate.tf2.export`` finds for Keras' own rematerialization, trained by ``fit``.

For each budget: the predicted peak, the peaks of real steps under the layers, how far gradients are from the
plain ones, the extra cost in FLOPs, and that of a schedule of our own within the same budget.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import checkmate
import checkmate.tf2
from steps.process import Row, answer
from zoo.small_keras import application, cut, resnet, transformer

_RUNS = 6
"""Measured runs of two steps each: TensorFlow starts ops in another order in each run."""
Model = Any  # Keras has no types
Made = tuple[Model, tf.Tensor, tf.Tensor]


def perceptron() -> Made:
    """Dense layers with GELU."""
    rows = [layers.Dense(512, "gelu", name=f"dense_{k}") for k in range(8)]
    model = keras.Sequential([keras.Input([256]), *rows, layers.Dense(10, name="last")])
    return model, tf.random.stateless_normal([2048, 256], [0, 0]), _labels([2048])


def bottlenecks() -> Made:
    """A small ResNet whose bottlenecks are models."""
    case = resnet(image=64, batch=16, stages=(3, 3))
    return case.model, *case.batch


def encoder() -> Made:
    """A transformer whose blocks are models."""
    case = transformer(length=128, batch=16, width=64, blocks=4, dropout=0.0)
    return case.model, *case.batch


def flat() -> Made:
    """A network of ``keras.applications``: single layers, one after the other."""
    case = application("MobileNet", image=64, batch=16, dropout=0.0)
    return case.model, *case.batch


def in_parts() -> Made:
    """The same, cut into models."""
    model, x, y = flat()
    return cut(model, lambda block: block), x, y


NETWORKS: dict[str, Callable[[], Made]] = {
    "MLP": perceptron,
    "ResNet": bottlenecks,
    "transformer": encoder,
    "MobileNet": flat,
    "MobileNet in blocks": in_parts,
}


def measure(task: Row) -> Row:
    """The rows of a network: the plain step, then one for each budget.

    Args:
        task: ``network``; ``budgets``; ``time_limit`` of the solver in seconds.
    """
    rows: list[Row] = []
    for budget in ("plain", *task["budgets"]):
        keras.backend.clear_session()
        gc.collect()
        rows.append(_row(task, budget))
    return {"rows": rows}


def _row(task: Row, budget: str) -> Row:
    keras.utils.set_random_seed(0)
    model, x, y = NETWORKS[task["network"]]()
    specs = [tf.TensorSpec(t.shape, t.dtype) for t in (x, y)]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    share = "100%" if budget == "plain" else budget
    try:
        found = checkmate.tf2.export(
            *(model, loss, keras.optimizers.Adam(), *specs, share),
            time_limit=0 if budget == "plain" else task["time_limit"],
            cost_model="flops",
            workspaces=True,
        )
    except checkmate.tf2.RematError as error:
        return {"budget": budget, "failed": str(error)}
    before = _gradients(model, loss, x, y)
    found.apply(model)
    after = _gradients(model, loss, x, y)
    off = max(
        float(np.abs(a - b).max() / (np.abs(a).max() + 1e-30)) for a, b in zip(before, after, strict=True)
    )
    judged = found.judged
    return {
        "budget": budget,
        "bytes": found.budget,
        "policy": str(judged.policy),
        "peak": judged.peak,
        "measured": _peaks(model, loss, x, y),
        "overhead": judged.overhead,
        "own_overhead": found.best_overhead,
        "bound": found.bound,
        "scope": judged.in_scope,
        "gradients_off": off,
    }


def _gradients(model: Model, loss: Any, x: tf.Tensor, y: tf.Tensor) -> list[Any]:
    """In a graph without Grappler, which rounds differently."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        return tape.gradient(value, model.trainable_variables)

    found = [np.asarray(tf.convert_to_tensor(g)) for g in step()]
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    return found


def _peaks(model: Model, loss: Any, x: tf.Tensor, y: tf.Tensor) -> list[int]:
    model.compile("adam", loss)
    data = tf.data.Dataset.from_tensors((x, y)).repeat(2)

    def fit() -> None:
        model.fit(data, shuffle=False, verbose=0)

    fit()
    found = []
    for _ in range(_RUNS):
        with checkmate.tf2.memory_meter(model.variables, model.optimizer.variables, x, y) as meter:
            fit()
        found.append(int(meter.peak))
    return sorted(found)


def _labels(shape: list[int]) -> tf.Tensor:
    return tf.random.stateless_uniform(shape, [0, 1], 0, 10, tf.int32)


if __name__ == "__main__":
    answer(measure)

"""Training by Keras' own ``fit`` of a network of :mod:`zoo.keras_world`, in each way to save memory.

- ``stock``: as compiled.
- ``remat``: ``keras.remat`` (in TensorFlow, ``tf.recompute_grad``) around each block. Blocks are the layers
  made of layers or, in a network without such layers, the parts that a single tensor enters.
- a share: enabled by Checkmate within that share of the stock peak, or within the least budget that the
  error names.

Four steps are trained, then two more for the peak of live bytes. Keras' reports of the four, and all weights
and slots after them, are compared with stock's. Kernels run on one thread each, so that bits can be equal.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import checkmate
import checkmate.tf2
from steps.process import LEAST, Row, answer
from zoo.keras_world import NETWORKS
from zoo.small_keras import cut

_STEPS = 2
_RUNS = 3
"""Measured runs of stock TensorFlow, whose order differs from run to run."""
_BUDGETS = (0.7, 0.5, LEAST)
Model = Any  # Keras has no types
Results = list[np.ndarray[Any, Any]]


def measure(task: Row) -> Row:
    """One row for each way, in this process.

    Args:
        task: ``network``; ``time_limit`` of the solver in seconds.
    """
    tf.config.threading.set_intra_op_parallelism_threads(1)
    stock, data, batch = _made(task["network"])
    results = _trained(stock, data)
    peaks = [_peak(stock, data, batch) for _ in range(_RUNS)]
    facts: Row = {"peak": min(peaks), "highest": max(peaks), "resident": _resident(stock, batch)}

    def compared(train: Callable[[], Row]) -> Row:
        try:
            return train()
        except Exception as failure:  # noqa: BLE001
            return {"failed": f"{type(failure).__name__}: {(str(failure).splitlines() or [''])[0][:300]}"}

    ways = [{"way": "remat"} | compared(lambda: _recomputing(task, results))]
    for share in _BUDGETS:
        found = compared(lambda share=share: _within(task, share, min(peaks), results))
        ways.append({"way": "checkmate", "share": share} | found)
    return facts | {"ways": ways}


def _within(task: Row, share: float, plain: int, expected: Results) -> Row:
    """The row of an enabled model."""
    budget = max(int(share * plain), 2**10)
    try:
        model, data, batch, training = _enabled(task, budget)
        results = _trained(model, data)
    except checkmate.InfeasibleBudgetError as error:
        if share != LEAST or error.minimum is None:
            raise
        budget = error.minimum
        model, data, batch, training = _enabled(task, budget)
        results = _trained(model, data)
    plans = training.plans
    return {
        "budget": budget,
        "expected": max(plan.expected for plan in plans),
        "plain_peak": plans[0].plain_peak,
        "overhead": max(plan.solution.overhead for plan in plans),
        "plans": len(plans),
        "peak": _peak(model, data, batch),
    } | _compared(results, expected)


def _enabled(task: Row, budget: int) -> tuple[Model, tf.data.Dataset, Any, Any]:
    model, data, batch = _made(task["network"])
    return model, data, batch, checkmate.tf2.enable(model, budget, time_limit=task["time_limit"])


def _recomputing(task: Row, expected: Results) -> Row:
    """The row of a model with each block recomputed."""
    model, data, batch = _made(task["network"])
    blocks = list(_blocks(model))
    for block in blocks:
        _recomputed(block)
    if not blocks:
        settings = model.get_compile_config()
        model = cut(model, _recomputed)
        model.compile_from_config(settings)
    results = _trained(model, data)
    return {"peak": _peak(model, data, batch)} | _compared(results, expected)


def _blocks(model: Model) -> Iterator[Model]:
    """The outermost layers that are made of layers; a model of such layers is no block."""
    for layer in model.layers:
        if isinstance(layer, keras.Model) and any(_has_layers(one) for one in layer.layers):
            yield from _blocks(layer)
        elif _has_layers(layer):
            yield layer


def _has_layers(layer: Model) -> bool:
    return any(True for _ in layer._flatten_layers(include_self=False))


def _recomputed(block: Model) -> Model:
    """The block, changed: it is recomputed in the backward pass, as Keras recomputes layers."""
    call = block.call

    def recomputed(*tensors: Any, **settings: Any) -> Any:
        return keras.remat(lambda *given: call(*given, **settings))(*tensors)

    block.call = recomputed
    return block


def _made(network: str) -> tuple[Model, tf.data.Dataset, Any]:
    """The compiled model, a data set of a few equal batches, and the batch."""
    keras.utils.set_random_seed(0)
    model, parts = NETWORKS[network]()
    batch = tf.nest.map_structure(tf.constant, parts if len(parts) > 1 else parts[0])
    return model, tf.data.Dataset.from_tensors(batch).repeat(_STEPS), batch


def _fit(model: Model, data: tf.data.Dataset) -> Any:
    return model.fit(data, verbose=0, shuffle=False).history


def _trained(model: Model, data: tf.data.Dataset) -> Results:
    """What Keras reports of each of two epochs, and all variables after them."""
    reports = [number for _ in range(2) for values in _fit(model, data).values() for number in values]
    return [np.asarray(reports), *(np.asarray(v.numpy(), np.float64) for v in _variables(model))]


def _variables(model: Model) -> list[Any]:
    """Weights, averages and seeds, and the slots of all optimizers of the model."""
    optimizers = [x for x in vars(model).values() if isinstance(x, keras.optimizers.Optimizer)]
    return [*model.variables, *(v for x in dict.fromkeys(optimizers) for v in x.variables)]


def _peak(model: Model, data: tf.data.Dataset, batch: Any) -> int:
    with checkmate.tf2.memory_meter(_variables(model), batch) as meter:
        _fit(model, data)
    return int(meter.peak)


def _resident(model: Model, batch: Any) -> int:
    tensors = [*_variables(model), *tf.nest.flatten(batch)]
    return sum(int(np.prod(x.shape)) * tf.as_dtype(x.dtype).size for x in tensors)


def _compared(ours: Results, theirs: Results) -> Row:
    """Whether all bits are equal, and the largest relative difference of a number that Keras reports."""
    equal = all(np.array_equal(a, b, equal_nan=True) for a, b in zip(ours, theirs, strict=True))
    difference = np.abs(ours[0] - theirs[0]) / np.maximum(np.abs(theirs[0]), np.finfo(np.float32).tiny)
    return {"equal": equal, "difference": 0.0 if equal else float(np.nan_to_num(difference).max())}


if __name__ == "__main__":
    logging.getLogger("checkmate_tf").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    answer(measure)

"""A compiled model is freed with its last reference: model, optimizer, batch, plans, and all our objects.

TensorFlow keeps a function, by its name, until it is removed: ours are removed with their plan.
"""

from __future__ import annotations

import gc
import os
import runpy
import subprocess
import sys
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

import checkmate.tf2

SCRIPT = str(Path(__file__).with_name("dropped_steps.py"))
functions: Callable[[], set[str]] = runpy.run_path(SCRIPT)["functions"]
SETTINGS: dict[str, Any] = {
    "budget": "8GiB",
    "solver": "heuristics",
    "cost_model": "flops",
    "workspaces": False,
    "cache": False,
}
MIB = 2**20
Way = Callable[[keras.Model, tf.Tensor, tf.Tensor], list[object]]
"""Uses an entry point; returns the objects that it makes."""


class Branching(keras.layers.Layer):
    """A layer with a branch, whose gradient Grappler turns into functions."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return tf.cond(tf.reduce_sum(x) > 0, lambda: tf.tanh(x), lambda: tf.sin(x))


def network() -> keras.Model:
    """A small model, compiled; its optimizer is built, because Keras leaks memory when ``fit`` builds one."""
    dense = keras.layers.Dense
    model = keras.Sequential([keras.Input([8]), dense(8), Branching(), dense(8), Branching(), dense(1)])
    model.compile(keras.optimizers.Adam(), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def given(model: keras.Model) -> tuple[Any, ...]:
    """The arguments of compile, plan and trace."""
    return model, "mse", model.optimizer, tf.TensorSpec([4, 8]), tf.TensorSpec([4, 1])


def compiled(model: keras.Model, x: tf.Tensor, y: tf.Tensor) -> list[object]:
    step = checkmate.tf2.compile(*given(model), **SETTINGS)
    step(x, y)
    return [step, *step.plans]


def fitted(model: keras.Model, x: tf.Tensor, y: tf.Tensor) -> list[object]:
    training = checkmate.tf2.enable(model, **SETTINGS)
    model.fit(x, y, batch_size=4, verbose=0)
    return [training, *training.plans]


def trained_on_a_batch(model: keras.Model, x: tf.Tensor, y: tf.Tensor) -> list[object]:
    training = checkmate.tf2.enable(model, **SETTINGS)
    model.train_on_batch(x, y)
    return [training, *training.plans]


def infeasible(model: keras.Model, x: tf.Tensor, y: tf.Tensor) -> list[object]:
    training = checkmate.tf2.enable(model, **{**SETTINGS, "budget": "1B"})
    with pytest.raises(checkmate.InfeasibleBudgetError):
        model.train_on_batch(x, y)
    return [training]


def called(model: keras.Model, x: tf.Tensor, y: tf.Tensor) -> list[object]:
    step = checkmate.tf2.function(lambda x, y: model.train_step((x, y))["loss"], **SETTINGS)
    step(x, y)
    return [step, *step.plans]


def planned(model: keras.Model, x: tf.Tensor, y: tf.Tensor) -> list[object]:
    return [checkmate.tf2.plan(*given(model), **SETTINGS)]


def traced(model: keras.Model, x: tf.Tensor, y: tf.Tensor) -> list[object]:
    checkmate.tf2.trace(*given(model), cost_model="flops", cache=False)
    return []


def measured(model: keras.Model, x: tf.Tensor, y: tf.Tensor) -> list[object]:
    with checkmate.tf2.memory_meter(model, x, y):
        return [model(x)]


def unplanned(model: keras.Model, x: tf.Tensor, y: tf.Tensor) -> list[object]:
    model.train_on_batch(x, y)
    return []


WAYS = (compiled, fitted, trained_on_a_batch, infeasible, called, planned, traced, measured)


def ours() -> Counter[str]:
    """The number of objects of each class of this distribution."""
    gc.collect()
    kinds = (type(found) for found in gc.get_objects())
    return Counter(kind.__qualname__ for kind in kinds if str(kind.__module__).startswith("checkmate_tf"))


def used(way: Way) -> list[weakref.ref[object]]:
    """Use an entry point; references to its arguments and to the objects that it made."""
    model, x, y = network(), tf.ones([4, 8]), tf.ones([4, 1])
    held = [model, model.optimizer, x, y, *model.variables, *way(model, x, y)]
    return [weakref.ref(found) for found in held]


@pytest.fixture(scope="module")
def kept() -> int:
    """The number of functions that TensorFlow keeps after a second model of ours, trained without a plan."""
    used(unplanned)
    gc.collect()
    before = functions()
    used(unplanned)
    gc.collect()
    return len(functions() - before)


@pytest.mark.parametrize("way", WAYS)
def test_dropped_objects_are_freed(way: Way, kept: int) -> None:
    used(way)  # makes the objects that are kept for all later uses
    before, functions_before = ours(), functions()
    references = used(way)
    assert ours() <= before
    assert not [found for reference in references if (found := reference()) is not None]
    assert len(functions() - functions_before) <= kept  # TensorFlow keeps functions around a custom gradient


@pytest.mark.parametrize("way", [fitted, trained_on_a_batch])
def test_a_disabled_model_keeps_nothing_of_its_plans(way: Way) -> None:
    model, x, y = network(), tf.ones([4, 8]), tf.ones([4, 1])
    model.train_on_batch(x, y)
    before = ours()
    references = [weakref.ref(found) for found in way(model, x, y)]
    checkmate.tf2.disable(model)
    assert ours() <= before
    assert not [found for reference in references if (found := reference()) is not None]


def test_ten_dropped_steps_leave_no_more_than_those_of_tensorflow() -> None:
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    running = [
        subprocess.Popen([sys.executable, SCRIPT, way], env=environment, stdout=subprocess.PIPE, text=True)
        for way in ("stock", "planned")
    ]
    (stock, _), (grown, known) = (map(int, process.communicate()[0].split()) for process in running)
    assert known == 0
    assert grown < stock + 4 * MIB

"""A step that makes variables is traced once, where TensorFlow traces twice, and gives the same values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from checkmate_tf import UnsupportedFunctionError
from checkmate_tf.capture.variables import made_at_once


def traces(initial: Any, *, at_once: bool) -> tuple[int, Any]:
    """The traces of a function that makes a variable, and the value of this after two calls."""
    made: list[tf.Variable] = []
    count = 0

    def step(x: tf.Tensor) -> tf.Tensor:
        nonlocal count
        count += 1
        if not made:
            made.append(tf.Variable(initial, name="v"))
        return made[0].assign_add(x)

    def body(x: tf.Tensor) -> tf.Tensor:
        if not at_once:
            return step(x)
        with made_at_once():
            return step(x)

    function = tf.function(body, autograph=False)
    for _ in range(2):
        function(tf.ones([2]))
    assert made[0].name == "v:0"
    return count, made[0].numpy()


INITIAL: dict[str, Any] = {
    "zeros": lambda: tf.zeros([2]),
    "a number for each seed": lambda: tf.random.stateless_normal([2], [0, 1]),
    "an array": np.ones(2, np.float32),
}


@pytest.mark.parametrize("initial", INITIAL.values(), ids=INITIAL)
def test_a_function_that_makes_variables_is_traced_once(initial: Any) -> None:
    once, twice = (traces(initial, at_once=at_once) for at_once in (True, False))
    assert (once[0], twice[0]) == (1, 2)
    assert np.array_equal(once[1], twice[1])


STATE = tf.Variable(tf.ones([2]))
OTHERS: dict[str, Callable[[], Any]] = {
    "drawn": lambda: tf.random.normal([2]),
    "read from a variable": lambda: STATE.read_value(),
    "made of a tensor": lambda: tf.constant(np.ones(2, np.float32)) + STATE,
}


@pytest.mark.parametrize("initial", OTHERS.values(), ids=OTHERS)
def test_a_value_that_may_change_is_left_to_tensorflow(initial: Callable[[], Any]) -> None:
    assert traces(initial, at_once=True)[0] == 2


def test_a_variable_for_each_step_is_refused_as_by_tensorflow() -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        return tf.Variable(0.0).assign_add(x)

    def planned(x: tf.Tensor) -> tf.Tensor:
        with made_at_once():
            return step(x)

    for body, error in ((step, ValueError), (planned, UnsupportedFunctionError)):
        with pytest.raises(error):
            tf.function(body, autograph=False)(tf.ones([]))

"""Make the variables that a step creates in its first trace, as metrics do, so that one trace is enough.

TensorFlow traces a function that makes variables twice: first with a conditional initialization of each, then
without. A variable whose initial value depends on nothing can be made right away, with the same bits. Then
one trace is enough, if the step does the same once the variable exists.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import tensorflow as tf

from checkmate_tf.capture.function_capture import UnsupportedFunctionError
from checkmate_tf.private import FuncGraph, is_stateful

__all__ = ["made_at_once"]


@contextmanager
def made_at_once() -> Iterator[None]:
    """Make variables at once inside of this block of a traced function, if this gives the same values.

    Raises:
        UnsupportedFunctionError: if such a variable does not outlive the block, so that each step would make
            its own; ``tf.function`` refuses this, too.
    """
    made: list[tuple[str, weakref.ref[tf.Variable]]] = []
    with tf.variable_creator_scope(partial(_at_once, made)):
        yield
    for name, variable in made:
        if variable() is None:
            raise UnsupportedFunctionError(
                f"the step makes the variable {name!r} and does not keep it, so each step would make "
                "another: make it once, and keep it, as an attribute of the model"
            )


def _at_once(
    made: list[tuple[str, weakref.ref[tf.Variable]]], creator: Callable[..., tf.Variable], **settings: Any
) -> tf.Variable:
    """Make a variable, without TensorFlow's conditional initialization if its initial value allows it."""
    if not _is_constant(settings["initial_value"]):
        return creator(**settings)
    with tf.init_scope():
        variable = creator(**settings | {"experimental_enable_variable_lifting": False})
    made.append((variable.name, weakref.ref(variable)))
    return variable


def _is_constant(initial: Any) -> bool:
    """Whether an initial value is always the same: computed without state, and from no other tensor."""
    if not callable(initial):
        return not tf.is_tensor(initial)
    graph = FuncGraph("initial_value")
    with graph.as_default():
        initial()
    return not graph.captures and not any(map(is_stateful, graph.get_operations()))

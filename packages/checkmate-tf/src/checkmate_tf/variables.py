"""Variables that a step makes in its first trace: optimizer slots, metrics, layers that are built late.

TensorFlow traces a function that makes variables twice: first with a conditional initialization of each, then
without. A variable whose initial value is a function of nothing can be made right away, to the same bits.
Then one trace is enough.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from checkmate_tf.private import FuncGraph, is_stateful

__all__ = ["made_at_once"]


def made_at_once() -> AbstractContextManager[None]:
    """Make variables at once inside of this block of a traced function, if this gives the same values.

    The owner of the function must keep them, as Keras does.
    """
    made: AbstractContextManager[None] = tf.variable_creator_scope(_at_once)
    return made


def _at_once(creator: Callable[..., tf.Variable], **settings: Any) -> tf.Variable:
    """Make a variable, without TensorFlow's conditional initialization if its initial value allows it."""
    if not _is_constant(settings["initial_value"]):
        return creator(**settings)
    with tf.init_scope():
        return creator(**settings | {"experimental_enable_variable_lifting": False})


def _is_constant(initial: Any) -> bool:
    """Whether an initial value is always the same: computed without state, and from no other tensor."""
    if not callable(initial):
        return not tf.is_tensor(initial)
    graph = FuncGraph("initial_value")
    with graph.as_default():
        initial()
    return not graph.captures and not any(map(is_stateful, graph.get_operations()))

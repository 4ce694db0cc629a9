"""Ops that are loops: a condition c and a body f, functions on the same arguments.

tf.while_loop(c, f, x)     ↦  While(x, cond=c, body=f):     while c(x): x = f(x)

In a planned step an iteration begins when the one before has ended. By default TensorFlow runs those parts of
up to 32 iterations at once that do not wait for each other, and holds the tensors of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import tensorflow as tf

__all__ = ["LOOPS", "Loop", "loop_arguments", "loop_functions", "one_by_one"]

LOOPS = frozenset({"While", "StatelessWhile"})
"""Types of ops that are loops."""

T_co = TypeVar("T_co", covariant=True)


class Loop(NamedTuple, Generic[T_co]):
    """The functions of a loop."""

    condition: T_co
    body: T_co


def loop_functions(op: tf.Operation) -> Loop[Any]:
    """The functions of a loop, with a ``name``, in its ``NodeDef``."""
    attr = op.node_def.attr
    return Loop(attr["cond"].func, attr["body"].func)


def loop_arguments(op: tf.Operation) -> Sequence[tf.Tensor]:
    """Tensors like the arguments of the functions of a loop, of known shapes as far as possible."""
    return [
        before if before.dtype in (tf.resource, tf.variant) or before.shape.is_fully_defined() else after
        for before, after in zip(op.inputs, op.outputs, strict=True)
    ]


def one_by_one(op: tf.Operation) -> dict[str, Any]:
    """The attribute that lets the iterations of a loop run one after the other; none for other ops."""
    return {"parallel_iterations": tf.compat.v1.AttrValue(i=1)} if op.type in LOOPS else {}

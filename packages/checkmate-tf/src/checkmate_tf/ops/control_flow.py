"""Ops that call functions on their inputs: branches, of which one runs, and loops.

    tf.cond(p, f, g)(x)        ↦  If(p, x, then_branch=f, else_branch=g)
    tf.switch_case(k, fs)(x)   ↦  Case(k, x, branches=fs)
    tf.while_loop(c, f, x)     ↦  While(x, cond=c, body=f):     while c(x): x = f(x)

In a planned step an iteration of a loop begins after the previous one ends. By default TensorFlow overlaps
up to 32 iterations, where their parts do not wait for each other, and holds the tensors of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import tensorflow as tf

__all__ = [
    "LOOPS",
    "Loop",
    "branch_arguments",
    "branch_functions",
    "has_branches",
    "loop_arguments",
    "loop_functions",
    "one_by_one",
]

LOOPS = frozenset({"While", "StatelessWhile"})
"""Types of ops that are loops."""
_BRANCHES = {
    "If": ("then_branch", "else_branch"),
    "StatelessIf": ("then_branch", "else_branch"),
    "Case": ("branches",),
    "StatelessCase": ("branches",),
}
"""Type of an op with branches → the attributes that name them."""

_T = TypeVar("_T")


class Loop(NamedTuple, Generic[_T]):
    """The functions of a loop."""

    condition: _T
    body: _T


def has_branches(op_type: str) -> bool:
    """Whether ops of a type have branches."""
    return op_type in _BRANCHES


def branch_functions(op_type: str, node: Any) -> list[Any]:
    """The branches of a ``NodeDef``: functions with a ``name`` that can be read and set."""
    attrs = [node.attr[key] for key in _BRANCHES.get(op_type, ())]
    return [function for attr in attrs for function in (attr.list.func or [attr.func])]


def branch_arguments(inputs: Sequence[_T]) -> Sequence[_T]:
    """The arguments of every branch: the inputs of the op, without the first, which selects the branch."""
    return inputs[1:]


def loop_functions(op: tf.Operation) -> Loop[Any]:
    """The condition and the body of a loop: functions with a ``name``, from its ``NodeDef``."""
    attr = op.node_def.attr
    return Loop(attr["cond"].func, attr["body"].func)


def loop_arguments(op: tf.Operation) -> Sequence[tf.Tensor]:
    """Tensors like the arguments of a loop's functions: inputs, or outputs if only these have a shape."""
    return [
        before if before.dtype in (tf.resource, tf.variant) or before.shape.is_fully_defined() else after
        for before, after in zip(op.inputs, op.outputs, strict=True)
    ]


def one_by_one(op: tf.Operation) -> dict[str, Any]:
    """The attribute that makes the iterations of a loop run one after the other; empty for other ops."""
    return {"parallel_iterations": tf.compat.v1.AttrValue(i=1)} if op.type in LOOPS else {}

"""Ops with branches: functions on the same arguments, of which each run of the op calls one.

tf.cond(p, f, g)(x)     ↦  If(p, x, then_branch=f, else_branch=g)
tf.switch_case(k, fs)   ↦  Case(k, x, branches=fs)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

__all__ = ["branch_arguments", "branch_functions", "has_branches"]

_ATTRIBUTES = {
    "If": ("then_branch", "else_branch"),
    "StatelessIf": ("then_branch", "else_branch"),
    "Case": ("branches",),
    "StatelessCase": ("branches",),
}

_T = TypeVar("_T")


def has_branches(op_type: str) -> bool:
    """Whether ops of a type have branches."""
    return op_type in _ATTRIBUTES


def branch_functions(op_type: str, node: Any) -> list[Any]:
    """The branches of a ``NodeDef``: functions with a ``name`` that can be read and set."""
    attrs = [node.attr[key] for key in _ATTRIBUTES.get(op_type, ())]
    return [function for attr in attrs for function in (attr.list.func or [attr.func])]


def branch_arguments(inputs: Sequence[_T]) -> Sequence[_T]:
    """The arguments of every branch: the inputs of the op, without the first, which selects the branch."""
    return inputs[1:]

"""Ops that can write their output over an operand, so that both need one storage.

    y = f(x, …) ↦ f_(x, …)                   element-wise functions with an in-place form
    y = f(x, z) ↦ f_(z, x)                   sums and products, whose operands may change places
    y = f'(g, …) ↦ f'(g, …, grad_input=g)    gradients of activations

Both forms run the same kernel, so all bits of the result are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch.fx import Node
from torch.fx.node import Argument

from checkmate_torch.ops.recompute_rules import is_random
from checkmate_torch.ops.storages import shown_by, storage_key
from checkmate_torch.private import OpOverload, formula, in_place_form, tree_leaves

__all__ = ["Overwrite", "overwrites"]

_aten = torch.ops.aten
_COMMUTATIVE = frozenset({_aten.add.Tensor, _aten.mul.Tensor})
_ACTIVATIONS = (
    *("elu", "gelu", "hardsigmoid", "hardtanh", "leaky_relu", "sigmoid", "silu", "softplus", "tanh"),
    "threshold",
)
_GRADIENTS: Mapping[object, OpOverload] = {
    (op := getattr(_aten, f"{name}_backward")).default: op.grad_input for name in _ACTIVATIONS
}
"""Gradient of an activation → its kernel that writes to a given tensor; the incoming gradient is first."""


class Overwrite(NamedTuple):
    """A call that computes what a node does and overwrites ``operand``; its arguments are like a node's."""

    operand: Node
    target: OpOverload
    args: tuple[Argument, ...]
    kwargs: dict[str, Argument]


def overwrites(node: Node) -> Iterator[Overwrite]:
    """The in-place calls that can replace a node; other readers of the operand are not considered."""
    for call in _candidates(node):
        operand, result = call.operand.meta.get("val"), node.meta.get("val")
        if _same_layout(operand, result) and _is_read_once(node, call.operand):
            yield call


def _candidates(node: Node) -> Iterator[Overwrite]:
    target, kwargs = node.target, dict(node.kwargs)
    first, *rest = node.args or (None,)
    if not (isinstance(target, OpOverload) and isinstance(first, Node)) or is_random(node):
        return
    if target in _GRADIENTS:
        yield Overwrite(first, _GRADIENTS[target], node.args, {**kwargs, "grad_input": first})
    elif torch.Tag.pointwise in target.tags and (form := in_place_form(target)) is not None:
        yield Overwrite(first, form, node.args, kwargs)
        if target in _COMMUTATIVE and not kwargs and isinstance(rest[0], Node):
            yield Overwrite(rest[0], form, (rest[0], first), kwargs)


def _is_read_once(node: Node, operand: Node) -> bool:
    """Whether an operand is one argument of a node, and no other argument shows its storage."""
    read = (x for x in tree_leaves((node.args, node.kwargs)) if isinstance(x, Node))
    storages = [storage_key(value) for value in shown_by(*read)]
    return storages.count(storage_key(operand.meta["val"])) == 1


def _same_layout(operand: object, result: object) -> bool:
    """Whether two tensors always have the same layout in storages of the same size; no guard is added."""
    if not (isinstance(operand, torch.Tensor) and isinstance(result, torch.Tensor)):
        return False
    mine, other = (
        (
            x.dtype,
            x.device,
            *map(formula, (*x.shape, *x.stride(), x.storage_offset(), x.untyped_storage().nbytes())),
        )
        for x in (operand, result)
    )
    return operand.dim() == result.dim() and mine == other

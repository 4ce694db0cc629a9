"""Ops that can write their output over an operand, so that both need one storage.

    y = f(x, …) ↦ f_(x, …)                   element-wise functions with an in-place form
    y = f(x, z) ↦ f_(z, x)                   sums and products, whose operands may change places
    y = f'(g, …) ↦ f'(g, …, grad_input=g)    gradients of activations
    y = z + a b  ↦ z.addmm_(a, b)            sums of products
    y = z with rows i set to x               results that are written piece by piece

Both forms run the same kernel, so all bits of the result are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import Argument

from checkmate_torch.ops.recompute_rules import Pure, is_random
from checkmate_torch.ops.storages import shown_by, storage_key
from checkmate_torch.private import OpOverload, formula, in_place_form, tree_leaves

__all__ = ["Overwrite", "Written", "overwrites"]

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


@dataclass(frozen=True)
class Written(Pure):
    """Write a piece into a tensor of the whole size: a new one, or a copy of the one with the pieces before.

    Attributes:
        dims: the dimensions that are cut.
        order: all dimensions of the whole tensor in the order of its memory, outermost first.
    """

    __name__: ClassVar[str] = "written"
    dims: tuple[int, ...]
    order: tuple[int, ...]

    def __call__(self, *args: Any) -> Tensor:
        """The tensor.

        Args:
            *args: the piece; the tensor so far, or None; the shape of the whole tensor; where the piece
                starts and where it stops in each dimension that is cut.
        """
        piece, before, shape, starts, stops = args
        if before is None:
            empty = piece.new_empty([shape[d] for d in self.order])
            before = empty.permute([self.order.index(d) for d in range(len(shape))])
        else:
            before = before.clone(memory_format=torch.preserve_format)
        return self.into(piece, before, shape, starts, stops)

    def into(self, piece: Tensor, before: Tensor, _shape: object, starts: Any, stops: Any) -> Tensor:
        """Write the piece into the tensor so far, in place; the arguments are the same."""
        shown = before
        for dim, start, stop in zip(self.dims, starts, stops, strict=True):
            shown = shown.narrow(dim, start, stop - start)
        shown.copy_(piece)
        return before


class Overwrite(NamedTuple):
    """A call that computes what a node does and overwrites ``operand``; its arguments are like a node's."""

    operand: Node
    target: Callable[..., object]
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
    if isinstance(target, Written) and isinstance(rest[0], Node):
        yield Overwrite(rest[0], target.into, node.args, kwargs)
    if not (isinstance(target, OpOverload) and isinstance(first, Node)) or is_random(node):
        return
    if target is _aten.addmm.default:
        yield Overwrite(first, _aten.addmm_.default, node.args, kwargs)
    elif target is _aten.addmm.dtype:
        yield Overwrite(first, _aten.addmm.dtype_out, node.args, {**kwargs, "out": first})
    elif target in _GRADIENTS:
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

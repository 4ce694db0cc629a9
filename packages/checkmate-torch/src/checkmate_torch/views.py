"""Shorter ways to a view: generated code makes it from a tensor that is there, without the views between.

    detach(x), alias(x)         ↦ x
    view(x) of x's own layout   ↦ x
    view(view(x, a), b)         ↦ view(x, b)
    t(t(x))                     ↦ x

No autograd follows generated code, so that it needs no detached tensors.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import Argument

from checkmate_torch.traced_graph import TracedGraph

__all__ = ["arguments_of_view", "shortest"]

_aten = torch.ops.aten
_SAME = frozenset({_aten.alias.default, _aten.detach.default})
_RESHAPES = frozenset({_aten._unsafe_view.default, _aten.view.default})


def shortest(traced: TracedGraph, node: Node) -> Node:
    """The node of a joint graph that has the value of another, by fewer views."""
    if traced.is_op(node) or node.op != "call_function":
        return node
    if node.target in _SAME:
        return shortest(traced, _operand(node))
    if node.target is _aten.t.default and not traced.is_op(before := _operand(node)):
        return shortest(traced, _operand(before)) if before.target is _aten.t.default else node
    if node.target in _RESHAPES and _same_layout(node, source := _reshaped(traced, node)):
        return source
    return node


def arguments_of_view(traced: TracedGraph, node: Node) -> tuple[Argument, ...]:
    """The arguments from which generated code makes a view."""
    if node.target in _RESHAPES:
        return (_reshaped(traced, node), *node.args[1:])
    return node.args


def _reshaped(traced: TracedGraph, node: Node) -> Node:
    """The node that a reshaping view shows in another shape, without further ones between."""
    source = shortest(traced, _operand(node))
    while source.target in _RESHAPES and not traced.is_op(source):
        source = shortest(traced, _operand(source))
    return source


def _operand(node: Node) -> Node:
    operand = node.args[0]
    if not isinstance(operand, Node):
        raise TypeError(f"{node.format_node()} is no view")
    return operand


def _same_layout(node: Node, source: Node) -> bool:
    ours, other = node.meta.get("val"), source.meta.get("val")
    if not (isinstance(ours, Tensor) and isinstance(other, Tensor)):
        return False
    layouts = (*ours.shape, *ours.stride()), (*other.shape, *other.stride())
    known = not any(isinstance(number, torch.SymInt) for layout in layouts for number in layout)
    return known and layouts[0] == layouts[1]

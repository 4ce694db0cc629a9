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

from checkmate_torch.tracing.traced_graph import TracedGraph

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
        before = shortest(traced, _operand(source))
        if not _shows(before, node):
            break
        source = before
    return source


def _operand(node: Node) -> Node:
    operand = node.args[0]
    if not isinstance(operand, Node):
        raise TypeError(f"{node.format_node()} is no view")
    return operand


def _same_layout(node: Node, source: Node) -> bool:
    return _layout(node) is not None and _layout(node) == _layout(source)


def _layout(node: Node) -> tuple[torch.Size, tuple[int, ...]] | None:
    """Shape and strides of a node's tensor; None if it has none, or if a size may change."""
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return None
    known = not any(isinstance(n, torch.SymInt) for n in (*value.shape, *value.stride()))
    return (value.shape, value.stride()) if known else None


def _shows(source: Node, node: Node) -> bool:
    """Whether a view of ``source`` in a node's shape has its strides, also those of dimensions of size 1."""
    given, wanted = _layout(source), _layout(node)
    if given is None or wanted is None:
        return False
    view = torch.empty_strided(*given, device="meta").view(wanted[0])
    return (view.shape, view.stride()) == wanted

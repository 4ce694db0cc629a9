"""The backward pass of a step whose loss reads only some outputs of the model, as with heads in turn.

The gradient g of an output is absent if no loss reads the output. PyTorch passes zeros in its place, but
eager code does not run what would read g:

    v = f(g)    ↦ absent
    v = g + w   ↦ w
    v = f(g, w) ↦ f(0, w)

where w depends on a gradient that is present. A parameter whose gradient is absent keeps its ``grad``, which
may be None; zeros would let momentum and weight decay move it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import Argument

from checkmate_torch.ops.fast_functions import fastest
from checkmate_torch.running.graph_writer import keep_alive
from checkmate_torch.tracing.traced_graph import TracedGraph, ancestors

__all__ = ["without_absent"]

_aten = torch.ops.aten


def without_absent(traced: TracedGraph, backward: GraphModule, absent: Sequence[int]) -> GraphModule:
    """A backward graph less the work for incoming gradients that are absent; it has the same arguments.

    No step of it holds more bytes than the same step of the whole graph.

    Args:
        traced: the joint graph.
        backward: the backward graph that was made of it.
        absent: their numbers among ``traced.tangents``.
    """
    graph = Graph()
    graph.output(graph.graph_copy(backward.graph, {}))
    tangents = graph.find_nodes(op="placeholder")[-len(traced.tangents) :]
    effects = {node for node in graph.nodes if not node.users and node.target is not keep_alive}
    effects -= _without_sums(graph, tangents, {tangents[k] for k in absent})
    _drop_results(graph, traced, {traced.tangents[k] for k in absent})
    for node in reversed(graph.nodes):
        if node.op == "call_function" and not node.users and node not in effects:
            graph.erase_node(node)
    unread = tuple(node for node in graph.find_nodes(op="placeholder") if not node.users)
    with graph.inserting_after(tangents[-1]):
        graph.call_function(keep_alive, unread)  # generated code would hold them to its end
    return GraphModule(backward, graph)


def _without_sums(graph: Graph, tangents: Sequence[Node], gone: set[Node]) -> set[Node]:
    """Replace sums by their parts that are present; returns the nodes that are absent."""
    due = set(tangents)
    for node in graph.nodes:
        read = due.intersection(node.all_input_nodes)
        if not read or node.op == "output":
            continue
        due.add(node)
        if read <= gone:
            gone.add(node)
        elif (present := _present_part(node, gone)) is not None:
            due.add(present)
            node.replace_all_uses_with(present)
    return gone


def _drop_results(graph: Graph, traced: TracedGraph, absent: set[Node]) -> None:
    """Return None for each gradient that depends on absent ones alone, also within fused kernels."""
    needs = (ancestors([gradient]) & set(traced.tangents) for gradient in traced.gradients)
    output = graph.output_node()
    pairs = zip(needs, cast("Sequence[Argument]", output.args[0]), strict=True)
    output.args = ([None if need and need <= absent else result for need, result in pairs],)


def _present_part(node: Node, gone: set[Node]) -> Node | None:
    """The value of a sum of which one part is absent; None if the node is no such sum.

    A copy is not overwritten before the last read of the part that is present.
    """
    new, in_place = fastest(_aten.add.Tensor), fastest(_aten.add_.Tensor)
    if node.target not in (new, in_place) or node.kwargs:
        return None
    parts = [x for x in node.args if isinstance(x, Node)]
    present = next(x for x in parts if x not in gone)
    if len(parts) < 2 or gone.isdisjoint(parts) or _layout(present) != _layout(node):
        return None
    if node.target is in_place and present is node.args[0]:
        return present
    with node.graph.inserting_before(node):
        copy = node.graph.call_function(torch.clone, (present,))
    copy.meta = dict(node.meta)
    return copy


def _layout(node: Node) -> str:
    """Type, shape and strides as text, in which sizes that may change are symbols."""
    value = node.meta["val"]
    return f"{value.dtype} {value.shape} {value.stride()}"

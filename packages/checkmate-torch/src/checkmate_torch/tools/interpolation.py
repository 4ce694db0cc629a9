"""The graph of a step over n examples, from those of two other numbers: bytes and costs are linear in n.

    size(n) ≈ size(a) + (n − a) / (b − a) · (size(b) − size(a))

That holds only if both graphs have the same ops, and it is exact for most models.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from checkmate import DFGraph

__all__ = ["alike", "interpolated", "priced_like"]


def alike(graph: DFGraph, other: DFGraph) -> bool:
    """Whether two graphs have the same ops, which read and make the same tensors."""
    return (graph.inputs, graph.outputs, graph.n_tensors) == (
        other.inputs,
        other.outputs,
        other.n_tensors,
    ) and list(_shape(graph)) == list(_shape(other))


def interpolated(known: tuple[int, DFGraph], other: tuple[int, DFGraph], n: int) -> DFGraph:
    """The graph for n examples.

    Args:
        known: a number of examples, and its graph.
        other: another number, and a graph that is alike.
        n: number of examples, also outside of the interval.

    >>> a, b = (DFGraph.from_nodes(cost=[k], size=[8 + 4 * k], deps=[[]]) for k in (1, 2))
    >>> interpolated((1, a), (2, b), 5).tensors[0].size
    28
    """
    (a, graph), (b, twin) = known, other
    share = (n - a) / (b - a)

    def between(x: float, y: float) -> float:
        return max(x + share * (y - x), 0.0)

    tensors = tuple(
        replace(t, size=round(between(t.size, u.size)))
        for t, u in zip(graph.tensors, twin.tensors, strict=True)
    )
    ops = tuple(
        replace(
            op,
            cost=between(op.cost, other.cost),
            workspace=round(between(op.workspace, other.workspace)),
        )
        for op, other in zip(graph.ops, twin.ops, strict=True)
    )
    fixed = round(between(graph.fixed_size, twin.fixed_size))
    return replace(graph, tensors=tensors, ops=ops, fixed_size=fixed)


def priced_like(graph: DFGraph, n: int, measured: tuple[int, DFGraph]) -> DFGraph:
    """The graph for n examples with measured costs and workspaces, in proportion to n.

    Args:
        graph: for n examples.
        n: number of examples.
        measured: another number, and its graph with measured costs; one that is not alike is ignored.
    """
    at, twin = measured
    if not alike(graph, twin):
        return graph
    ops = tuple(
        replace(op, cost=other.cost * n / at, workspace=max(op.workspace, other.workspace * n // at))
        for op, other in zip(graph.ops, twin.ops, strict=True)
    )
    return replace(graph, ops=ops, cost_unit=twin.cost_unit)


def _shape(graph: DFGraph) -> Iterator[object]:
    return ((op.inputs, op.outputs, op.recomputable) for op in graph.ops)

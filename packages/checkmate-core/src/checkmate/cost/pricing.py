"""New costs c ∈ ℝ₊ⁿ for the ops of a graph: one number for each op, or the constant 1."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace

from checkmate.errors import CostError
from checkmate.model.graph import DFGraph

__all__ = ["UnitCost", "positive", "with_costs"]

_LARGEST = sys.float_info.max


def with_costs(graph: DFGraph, costs: Iterable[float], unit: str) -> DFGraph:
    """The graph with these costs, one for each op, in this unit; all else is unchanged.

    Raises:
        CostError: if the number of costs is not the number of ops, or a cost is not a number.
        GraphError: if a cost is negative, infinite or nan.

    >>> graph = DFGraph.from_nodes(cost=[1, 1], size=[4, 4], deps=[[], [0]])
    >>> [op.cost for op in with_costs(graph, [0.5, 2.0], "s").ops]
    [0.5, 2.0]
    """
    priced = [_number(cost) for cost in costs]
    if len(priced) != graph.n_ops:
        raise CostError(f"{len(priced)} costs for {graph.n_ops} ops: give each op one")
    ops = tuple(replace(op, cost=cost) for op, cost in zip(graph.ops, priced, strict=True))
    return replace(graph, ops=ops, cost_unit=unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitCost:
    """Every op costs 1, so that the cost of a schedule is its number of computes; the unit is ``"1"``.

    Much of the literature uses it, and it is the assumption without measurements. A convolution costs the
    same as a bias.

    >>> UnitCost().annotate(DFGraph.from_nodes(cost=[5, 7], size=[4, 4], deps=[[], [0]]))
    <DFGraph '': 2 ops, 2 tensors, cost in 1>
    """

    def annotate(self, graph: DFGraph) -> DFGraph:
        """The graph with cost 1 for each op."""
        return with_costs(graph, [1.0] * graph.n_ops, "1")


def positive(value: object, name: str) -> None:
    """Raise CostError unless ``value`` is a finite number > 0 that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _LARGEST:
        raise CostError(f"{name} is {value!r}, must be a finite number > 0")


def _number(cost: float) -> float:
    try:
        return float(cost)
    except (TypeError, ValueError, OverflowError):
        raise CostError(f"a cost is {cost!r:.40}, must be a number") from None

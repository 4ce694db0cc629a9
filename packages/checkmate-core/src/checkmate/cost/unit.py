"""The constant cost: c(v) = 1."""

from __future__ import annotations

from dataclasses import dataclass

from checkmate.cost.pricing import with_costs
from checkmate.model.graph import DFGraph

__all__ = ["UnitCost"]


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

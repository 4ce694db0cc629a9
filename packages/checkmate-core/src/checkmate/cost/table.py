"""Costs from a table of op names and numbers, for example the output of a profiler."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from checkmate.cost.pricing import with_costs
from checkmate.errors import CostError
from checkmate.model.graph import DFGraph

__all__ = ["TableCost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCost:
    """Costs from a table; ops that are not listed keep their costs, if the unit stays the same.

    Attributes:
        costs: op name → cost of one run, in ``unit``.
        unit: of the costs; None = the unit of the graph.

    >>> graph = DFGraph.from_nodes(cost=[5, 7], size=[4, 4], deps=[[], [0]], names=["conv", "relu"])
    >>> [op.cost for op in TableCost(costs={"relu": 2}).annotate(graph).ops]
    [5.0, 2.0]
    """

    costs: Mapping[str, float]
    unit: str | None = None

    def __post_init__(self) -> None:
        """Take a private copy."""
        object.__setattr__(self, "costs", dict(self.costs))

    def __hash__(self) -> int:
        """By content."""
        return hash((frozenset(self.costs.items()), self.unit))

    def annotate(self, graph: DFGraph) -> DFGraph:
        """The graph with the listed costs.

        Raises:
            CostError: if a listed name belongs to no op or to several, a cost is not a number, or the table
                changes the unit but leaves ops out.
            GraphError: if a cost is negative, infinite or nan.
        """
        ops = Counter(op.name for op in graph.ops)
        for name in self.costs:
            if ops[name] == 0:
                close = difflib.get_close_matches(name, ops)
                hint = (
                    f"did you mean {' or '.join(map(repr, close))}?" if close else "remove it from the table"
                )
                raise CostError(f"costs: the graph has no op {name!r}; {hint}")
            if ops[name] > 1:
                raise CostError(
                    f"costs: {ops[name]} ops are called {name!r}, which makes the table ambiguous: give "
                    "them names of their own, or pass checkmate.cost.with_costs a cost for each"
                )
        unit = graph.cost_unit if self.unit is None else self.unit
        left_out = [op.name for op in graph.ops if op.name not in self.costs]
        if unit != graph.cost_unit and left_out:
            raise CostError(
                f"costs are in {unit!r} but the graph's in {graph.cost_unit!r}: every op must be listed, and "
                f"{len(left_out)} are not, the first {left_out[0]!r}"
            )
        return with_costs(graph, (self.costs.get(op.name, op.cost) for op in graph.ops), unit)

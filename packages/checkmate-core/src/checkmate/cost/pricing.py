"""New costs c ∈ ℝ₊ⁿ for the ops of a graph: one number for each op, the constant 1, or a table of names."""

from __future__ import annotations

import difflib
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from checkmate.errors import CostError
from checkmate.model.graph import DFGraph

__all__ = ["TableCost", "UnitCost", "positive", "with_costs"]

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

    Much of the literature uses this model, and it needs no measurements. A convolution costs the same as a
    bias.

    >>> UnitCost().annotate(DFGraph.from_nodes(cost=[5, 7], size=[4, 4], deps=[[], [0]]))
    <DFGraph '': 2 ops, 2 tensors, cost in 1>
    """

    def annotate(self, graph: DFGraph) -> DFGraph:
        """The graph with cost 1 for each op."""
        return with_costs(graph, [1.0] * graph.n_ops, "1")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCost:
    """Costs from a table; ops that are not listed keep their costs, if the unit stays the same.

    Attributes:
        costs: op name → cost of one run, in ``unit``.
        unit: the unit of the costs; None = the unit of the graph.

    >>> graph = DFGraph.from_nodes(cost=[5, 7], size=[4, 4], deps=[[], [0]], names=["conv", "relu"])
    >>> [op.cost for op in TableCost(costs={"relu": 2}).annotate(graph).ops]
    [5.0, 2.0]
    """

    costs: Mapping[str, float]
    unit: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "costs", dict(self.costs))

    def __hash__(self) -> int:
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


def positive(value: object, name: str) -> None:
    """Raise CostError unless ``value`` is a finite number > 0 that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _LARGEST:
        raise CostError(f"{name} is {value!r}, must be a finite number > 0")


def _number(cost: float) -> float:
    try:
        return float(cost)
    except (TypeError, ValueError, OverflowError):
        raise CostError(f"a cost is {cost!r:.40}, must be a number") from None

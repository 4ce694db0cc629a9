"""Costs times a positive number: the same preferences between schedules, in another unit."""

from __future__ import annotations

from dataclasses import dataclass

from checkmate.cost.pricing import positive, with_costs
from checkmate.errors import CostError
from checkmate.model.graph import DFGraph

__all__ = ["ScaledCost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledCost:
    """Every cost times ``factor``, or scaled so that computing every op once costs ``total``.

    Overheads, and the ranking of schedules, do not change. Without either, ``total`` is 1: the cost of a
    schedule is then 1 + its overhead.

    Attributes:
        factor: > 0; None = chosen so that the ideal cost is ``total``.
        total: > 0; None = 1 if there is no ``factor`` either.
        unit: of the new costs.

    Raises:
        CostError: if both are given, or one is not a finite number > 0.

    >>> graph = DFGraph.from_nodes(cost=[1, 3], size=[4, 4], deps=[[], [0]], cost_unit="s")
    >>> [op.cost for op in ScaledCost().annotate(graph).ops]
    [0.25, 0.75]
    >>> ScaledCost(factor=1e3, unit="ms").annotate(graph).ideal_cost
    4000.0
    """

    factor: float | None = None
    total: float | None = None
    unit: str = "1"

    def __post_init__(self) -> None:
        """Reject invalid settings."""
        if self.factor is not None and self.total is not None:
            raise CostError(f"factor {self.factor!r} and total {self.total!r} are both given: give one")
        for name in ("factor", "total"):
            if (value := getattr(self, name)) is not None:
                positive(value, name)

    def annotate(self, graph: DFGraph) -> DFGraph:
        """The graph with scaled costs.

        Raises:
            CostError: if ``total`` is given for a graph whose ops all cost 0.
            GraphError: if the new costs are too large.
        """
        if self.factor is not None:
            return with_costs(graph, (op.cost * self.factor for op in graph.ops), self.unit)
        total, ideal = self.total or 1.0, graph.ideal_cost
        if ideal == 0:
            raise CostError(f"all ops of {graph!r} cost 0: no factor makes that {total}")
        return with_costs(graph, (op.cost / ideal * total for op in graph.ops), self.unit)

"""Costs rounded up to integer multiples of a quantum q: c_q(v) = q ⌈c(v) / q⌉.

They suit solvers that count in integers, and make costs equal that differ by less than the noise of their
measurement. Rounding up never makes a compute free.

The distance from the optimum is bounded. Let σ be any schedule, and N(σ) its number of computes whose cost is
not a multiple of q. Rounding adds less than q to each, hence

    cost(σ) ≤ cost_q(σ) ≤ cost(σ) + q N(σ).

Let σ* be optimal for c, σ' for c_q, in the same budget. Then cost(σ') ≤ cost_q(σ') ≤ cost_q(σ*), and so

    cost(σ') ≤ cost(σ*) + q N(σ*):

the loss is at most one quantum for each compute of an optimal schedule. In the same way a lower bound b on
cost_q gives the lower bound b − q N(σ*) on cost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from checkmate.cost.pricing import positive, with_costs
from checkmate.errors import CostError
from checkmate.model.graph import DFGraph

__all__ = ["QuantisedCost"]

_ROUNDING = 1e-9  # relative distance at which a quotient counts as an integer


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedCost:
    """Costs rounded up to multiples of ``quantum``, or of a ``levels``-th of the largest cost of an op.

    The true cost of a schedule that is optimal for the rounded costs exceeds the optimum by at most
    ``quantum`` times the number of computes of an optimal schedule; the module proves it. (Up to the rounding
    of floats: a cost less than a billionth above a multiple counts as that multiple.) The unit stays.

    Attributes:
        quantum: > 0, in the graph's cost unit; None = largest cost / ``levels``.
        levels: > 0; None = 1000 if there is no ``quantum`` either.

    Raises:
        CostError: if both are given, ``quantum`` is not a finite number > 0, or ``levels`` not an integer >
            0.

    >>> graph = DFGraph.from_nodes(cost=[0.1, 1.0, 7.5], size=[4] * 3, deps=[[], [0], [1]])
    >>> [op.cost for op in QuantisedCost(quantum=0.5).annotate(graph).ops]
    [0.5, 1.0, 7.5]
    >>> [op.cost for op in QuantisedCost(levels=3).annotate(graph).ops]
    [2.5, 2.5, 7.5]
    """

    quantum: float | None = None
    levels: int | None = None

    def __post_init__(self) -> None:
        """Reject invalid settings."""
        if self.quantum is not None and self.levels is not None:
            raise CostError(f"quantum {self.quantum!r} and levels {self.levels!r} are both given: give one")
        if self.quantum is not None:
            positive(self.quantum, "quantum")
        levels: object = self.levels
        if levels is not None and (isinstance(levels, bool) or not isinstance(levels, int) or levels < 1):
            raise CostError(f"levels is {self.levels!r}, must be an integer > 0")

    def annotate(self, graph: DFGraph) -> DFGraph:
        """The graph with rounded costs; costs of 0 stay 0.

        Raises:
            CostError: if a cost is more than 2^53 quanta, beyond the precision of a float.
        """
        quantum = self.quantum_of(graph)
        return with_costs(graph, (_rounded_up(op.cost, quantum) for op in graph.ops), graph.cost_unit)

    def quantum_of(self, graph: DFGraph) -> float:
        """The quantum that is used for ``graph``."""
        if self.quantum is not None:
            return self.quantum
        return max((op.cost for op in graph.ops), default=0.0) / (self.levels or 1000) or 1.0


def _rounded_up(cost: float, quantum: float) -> float:
    quotient = cost / quantum
    if quotient > 2**53:
        raise CostError(f"a cost of {cost!r} is too many quanta of {quantum!r}: take a larger quantum")
    nearest = round(quotient)
    count = nearest if abs(quotient - nearest) <= _ROUNDING * nearest else math.ceil(quotient)
    return count * quantum

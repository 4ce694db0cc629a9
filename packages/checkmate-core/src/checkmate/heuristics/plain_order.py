"""The order of the plain program, for a graph whose base order is another one; nothing is recomputed."""

from __future__ import annotations

from dataclasses import dataclass

from checkmate.graph import DFGraph
from checkmate.heuristics.selection import cheapest
from checkmate.problem import Problem
from checkmate.schedule import Schedule
from checkmate.simulate import simulate
from checkmate.solution import Solution

__all__ = ["PlainOrder"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainOrder:
    """One order of one graph's ops, without recomputation: optimal if it fits.

    Updates of parameters that stand as early as they may
    (:func:`~checkmate.analysis.with_writes_settled`) need room for what they compute. Where the base order is
    over a budget for that reason, and the plain program's is not, nothing is better than the latter. Shares
    are shares of its peak.

    Attributes:
        order: every op of the graph once.

    >>> graph = DFGraph.from_nodes(cost=[1, 1, 1], size=[4, 4, 1], deps=[[], [], [0]])
    >>> plain = PlainOrder(order=(0, 2, 1))
    >>> plain.peak(graph), plain.solve(Problem(graph=graph, budget=8)).status
    (5, <Status.OPTIMAL: 'optimal'>)
    """

    order: tuple[int, ...]

    def peak(self, graph: DFGraph) -> int:
        """What the plain program holds at most, in bytes.

        Raises:
            InvalidScheduleError: if an op stands before what it reads, or one is missing.
        """
        return simulate(graph, Schedule.from_sequence(graph, self.order)).peak

    def solve(self, problem: Problem) -> Solution:
        """That order if its peak is within the budget, else unknown (infeasible below the floor)."""
        return cheapest(problem, [self.order])

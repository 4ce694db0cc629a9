"""The order of the original program, if the base order of its graph is another; nothing is recomputed."""

from __future__ import annotations

from dataclasses import dataclass

from checkmate.heuristics.selection import cheapest
from checkmate.model.graph import DFGraph
from checkmate.model.schedule import Schedule
from checkmate.problem.problem import Problem
from checkmate.problem.solution import Solution
from checkmate.simulate import simulate

__all__ = ["PlainOrder"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainOrder:
    """One order of one graph's ops, without recomputation: optimal if it fits.

    A base order with updates of parameters as early as possible
    (:func:`~checkmate.analysis.with_writes_settled`) may need more memory than the program. If it exceeds a
    budget for that reason, and the order of the program does not, the latter is optimal. Budgets given as
    shares are shares of its peak.

    Attributes:
        order: every op of the graph once.

    >>> graph = DFGraph.from_nodes(cost=[1, 1, 1], size=[4, 4, 1], deps=[[], [], [0]])
    >>> plain = PlainOrder(order=(0, 2, 1))
    >>> plain.peak(graph), plain.solve(Problem(graph=graph, budget=8)).status
    (5, <Status.OPTIMAL: 'optimal'>)
    """

    order: tuple[int, ...]

    def peak(self, graph: DFGraph) -> int:
        """The peak of this order, in bytes.

        Raises:
            InvalidScheduleError: if an op comes before a producer of its inputs, or an op is missing.
        """
        return simulate(graph, Schedule.from_sequence(graph, self.order)).peak

    def solve(self, problem: Problem) -> Solution:
        """That order if its peak is within the budget, else unknown (infeasible below the floor)."""
        return cheapest(problem, [self.order])

"""Keep everything: compute each op once, free each tensor after its last use, as frameworks do."""

from __future__ import annotations

from dataclasses import dataclass

from checkmate.heuristics.selection import cheapest
from checkmate.problem.problem import Problem, keep_all_peak
from checkmate.problem.solution import Solution

__all__ = ["KeepAll"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepAll:
    """The base order without recomputation, which is optimal if it fits.

    >>> from checkmate.model.graph import DFGraph
    >>> graph = DFGraph.from_nodes(cost=[1, 1], size=[4, 2], deps=[[], [0]])
    >>> KeepAll().solve(Problem(graph=graph, budget=6)).peak
    6
    """

    def solve(self, problem: Problem) -> Solution:
        """The base order if its peak is within the budget, else unknown (infeasible below the floor)."""
        fits = keep_all_peak(problem.graph) <= problem.budget
        return cheapest(problem, [range(problem.graph.n_ops)] if fits else [])

"""Static eviction: rules for the score by which :mod:`checkmate.heuristics.paging` evicts tensors.

- *Belady* (1966): distance = ops until the next use; uses for recomputing other tensors count.
- *DTR* (Kirisame et al., ICLR 2021, h_DTR): distance = staleness, the time since the last use.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from checkmate.analysis import floor
from checkmate.heuristics.paging import Weights, evicting_sequence
from checkmate.heuristics.prune import pruned
from checkmate.model.graph import DFGraph
from checkmate.model.schedule import Schedule
from checkmate.problem.deadline import Deadline
from checkmate.problem.problem import Problem, judging_s
from checkmate.problem.solution import Solution

__all__ = ["Rule", "StaticEviction"]

Rule = Literal["belady", "dtr"]


_WEIGHTS: Mapping[Rule, tuple[Weights, ...]] = {
    "belady": (
        Weights(1, 1, 1),
        Weights(1, 1, 0.5, outputs_too=True),
        Weights(1, 1, 0),
        Weights(0.5, 1, 0),
        Weights(0, 1, 0),
    ),
    "dtr": (
        Weights(1, 1, 1, stale=True, outputs_too=True),
        Weights(1, 1, 1, stale=True),
        Weights(1, 0, 1, stale=True),
        Weights(0, 1, 1, stale=True),
    ),
}
_STARTING = 2
"""Setting up a run takes as long as judging about this number of schedules."""
_WORSE = 1.3
"""Give a run up when its cost, before pruning, exceeds the best cost by this factor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticEviction:
    """Evict by a rule, with several weights; return the cheapest schedule after pruning.

    Attributes:
        rule: ``"belady"`` or ``"dtr"``; the module describes both.
    """

    rule: Rule = "belady"

    def solve(self, problem: Problem) -> Solution:
        """Run the base order under the budget; infeasible only if the budget is below the proved floor."""
        graph, budget = problem.graph, problem.budget
        if budget < floor(graph).size:
            return Solution.infeasible(problem)
        limit = problem.time_limit
        deadline, patient = Deadline(limit), Deadline(limit, patient=True)
        best: list[int] | None = None
        for weights in _WEIGHTS[self.rule]:
            until = patient if best is None else deadline
            if until.left_s < _STARTING * judging_s(graph):
                break
            ceiling = _WORSE * _cost(graph, best) if best is not None else math.inf
            sequence = evicting_sequence(graph, budget, weights, ceiling=ceiling, deadline=until)
            if sequence is not None:
                sequence = pruned(graph, sequence, budget, fixed_order=problem.fixed_order, deadline=deadline)
                if best is None or _cost(graph, sequence) < _cost(graph, best):
                    best = sequence
        if best is None:
            return Solution.unknown(problem)
        return Solution.found(
            problem, Schedule.from_sequence(graph, best), origin={"schedule": f"evict-{self.rule}"}
        )


def _cost(graph: DFGraph, sequence: Iterable[int]) -> float:
    return math.fsum(graph.ops[v].cost for v in sequence)

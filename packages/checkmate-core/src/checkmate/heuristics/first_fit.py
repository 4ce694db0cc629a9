"""Feasibility only: is there any schedule within the budget? The answer is quick; its cost may be high.

Bisections over budgets run it a dozen times.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from checkmate.analysis import floor
from checkmate.heuristics.paging import Weights, evicting_sequence
from checkmate.model.lower import lazy_sequence
from checkmate.model.schedule import Schedule
from checkmate.problem.deadline import Deadline
from checkmate.problem.problem import Problem, keep_all_peak
from checkmate.problem.solution import Solution
from checkmate.simulate import simulate

__all__ = ["FirstFit"]

_WEIGHTS = (
    Weights(1, 1, 0.5),
    Weights(0.5, 1, 0),
    Weights(1, 1, 1, stale=True),
)
_MORE_PERCENT = (2, 5, 9, 14, 19, 26)
"""By these percentages the budget of a rule is raised when it finds no schedule within the real one.

Rules are not monotone: with a larger budget they sometimes evict better, and stay within the real one.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstFit:
    """The first schedule that fits, of keep-all, three eviction rules, recompute-all, and the rules again.

    The second time, the rules run with a larger budget.
    """

    def solve(self, problem: Problem) -> Solution:
        """A schedule of any cost; unknown if no rule finds one in time; infeasible below the floor."""
        graph, deadline = problem.graph, Deadline(problem.time_limit, patient=True)
        if problem.budget < floor(graph).size:
            return Solution.infeasible(problem)
        for sequence in self._sequences(problem, deadline):
            if sequence is not None:
                timeline = simulate(graph, Schedule.from_sequence(graph, sequence))
                if timeline.peak <= problem.budget:
                    return Solution.found(problem, timeline)
            if deadline.passed:
                break
        return Solution.unknown(problem)

    def _sequences(self, problem: Problem, deadline: Deadline) -> Iterator[Sequence[int] | None]:
        graph, budget = problem.graph, problem.budget
        if keep_all_peak(graph) <= budget:
            yield range(graph.n_ops)
        for weights in _WEIGHTS:
            yield evicting_sequence(graph, budget, weights, deadline=deadline)
        turn = next((i for i, op in enumerate(graph.ops) if op.backward), graph.n_ops)
        yield lazy_sequence(graph, np.zeros(graph.n_tensors, dtype=np.bool_), turn)
        for percent, weights in itertools.product(_MORE_PERCENT, _WEIGHTS):
            yield evicting_sequence(graph, budget + budget * percent // 100, weights, deadline=deadline)

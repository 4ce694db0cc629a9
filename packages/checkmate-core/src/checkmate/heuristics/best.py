"""The best of the built-in rules, and the first that fits.

``solver="auto"`` falls back on the best without ``checkmate-solvers``. First-fit quickly finds some schedule
within the budget, at any cost: bisections over budgets run it a dozen times.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from checkmate.analysis import floor
from checkmate.heuristics.chen import ChenSqrtN
from checkmate.heuristics.eviction import StaticEviction
from checkmate.heuristics.paging import Weights, evicting_sequence
from checkmate.heuristics.simple import KeepAll
from checkmate.model.lower import lazy_sequence
from checkmate.model.schedule import Schedule
from checkmate.plugins.specs import Solver
from checkmate.problem.deadline import Deadline
from checkmate.problem.problem import Problem, keep_all_peak
from checkmate.problem.solution import Solution, Status
from checkmate.simulate import simulate

__all__ = ["BestHeuristic", "FirstFit"]


_WEIGHTS = (Weights(1, 1, 0.5), Weights(0.5, 1, 0), Weights(1, 1, 1, stale=True))
_MORE_PERCENT = (2, 5, 9, 14, 19, 26)
"""If a rule finds no schedule, run it again with budgets that are larger by these percentages.

Rules are not monotone: with a larger budget they may evict better, and stay within the real budget.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BestHeuristic:
    """Try each rule in turn, the quickest first, within the time limit; return the cheapest schedule.

    Keep-all comes first: if it fits, it is optimal. First-fit, which tries hardest to meet the budget, comes
    last, and only if no other rule has met it. ``Solution.origin["schedule"]`` names the rule.
    """

    def solve(self, problem: Problem) -> Solution:
        """The cheapest schedule of all rules; unknown if none fits, infeasible below the floor."""
        rules: dict[str, Solver] = {
            "keep-all": KeepAll(),
            "chen-sqrt-n, one length": ChenSqrtN(sweep=False),
            "evict-belady": StaticEviction(rule="belady"),
            "evict-dtr": StaticEviction(rule="dtr"),
            "chen-sqrt-n": ChenSqrtN(),
            "first-fit": FirstFit(),
        }
        limit = problem.time_limit
        deadline, patient = Deadline(limit), Deadline(limit, patient=True)
        best = Solution.unknown(problem)
        for name, rule in rules.items():
            left = (patient if best.schedule is None else deadline).left_s
            if left <= 0 or (name == "first-fit" and best.schedule is not None):
                break
            answer = rule.solve(dataclasses.replace(problem, time_limit=left))
            if answer.status is Status.INFEASIBLE:
                return Solution.infeasible(problem)
            if answer.timeline is not None and answer.cost < best.cost:
                best = Solution.found(problem, answer.timeline, bound=answer.bound, origin={"schedule": name})
            if best.status is Status.OPTIMAL:
                break
        return best


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstFit:
    """The first schedule that fits: of keep-all, three eviction rules, recompute-all, and the rules again.

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

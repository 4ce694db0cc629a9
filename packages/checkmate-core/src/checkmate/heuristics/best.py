"""The best of the built-in rules; ``solver="auto"`` falls back on it without ``checkmate-solvers``."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from checkmate.heuristics.chen import ChenSqrtN
from checkmate.heuristics.eviction import StaticEviction
from checkmate.heuristics.first_fit import FirstFit
from checkmate.heuristics.keep_all import KeepAll
from checkmate.plugins.specs import Solver
from checkmate.problem.deadline import Deadline
from checkmate.problem.problem import Problem
from checkmate.problem.solution import Solution, Status

__all__ = ["BestHeuristic"]


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

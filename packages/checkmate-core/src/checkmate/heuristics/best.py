"""The best of the rules of this package: what ``solver="auto"`` means when no real solver is installed."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

from checkmate.heuristics.chen import ChenSqrtN
from checkmate.heuristics.eviction import StaticEviction
from checkmate.heuristics.keep_all import KeepAll
from checkmate.plugins.specs import Solver
from checkmate.problem import Problem
from checkmate.solution import Solution, Status

__all__ = ["BestHeuristic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BestHeuristic:
    """Try each rule in turn, quickest first, while there is time; take the cheapest schedule.

    Keep-all first: if it fits, nothing is better. ``Solution.origin["schedule"]`` names the rule.
    """

    def solve(self, problem: Problem) -> Solution:
        """The cheapest of all; unknown if none fits, infeasible below the floor of the graph."""
        rules: dict[str, Solver] = {
            "keep-all": KeepAll(),
            "evict-belady": StaticEviction(rule="belady"),
            "evict-dtr": StaticEviction(rule="dtr"),
            "chen-sqrt-n": ChenSqrtN(),
        }
        deadline = time.monotonic() + problem.time_limit
        best = Solution.unknown(problem)
        for name, rule in rules.items():
            left = deadline - time.monotonic()
            if left <= 0:
                break
            answer = rule.solve(dataclasses.replace(problem, time_limit=left))
            if answer.status is Status.INFEASIBLE:
                return Solution.infeasible(problem)
            if answer.schedule is not None and answer.cost < best.cost:
                best = Solution.found(problem, answer.schedule, bound=answer.bound, origin={"schedule": name})
            if best.status is Status.OPTIMAL:
                break
        return best

"""The decision tree of ``solver="auto"``: each step starts where the one before left a gap.

1. The budget is below the floor: infeasible, proved. It has room for everything: done.
2. Static eviction by a few rules: a first schedule, in milliseconds; whatever fits, if that finds none.
3. Minimum cuts at several moments: a bound, and better schedules.
4. A few cycles of local search: much better schedules.
5. The cut MILP, with more and more moments: a better bound, and better schedules still.
6. 3 and 5 once more with the other view of the order: for their schedules if ops may be reordered, for their
   bounds (each MILP is cut short somewhere else) if they may not.
7. Local search, from the best schedule and from what each other step found.
8. If there is no schedule yet: the best of the published rules; then the schedule of the least budget for
   which quick rules find one, if it fits.

It stops as soon as the gap is at most 0.05 %, or when many cycles in a row found nothing better, or at the
time limit. Nothing depends on chance but through the seed; only time limits cut in where the machine decides,
that of the problem and the share of it that a step gets: the same problem gets the same answer while none of
them does. An interrupt (Ctrl-C) ends the search; the answer is the best so far.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from checkmate import Problem, Solution, minimum_budget
from checkmate.heuristics import BestHeuristic, FirstFit
from checkmate.plugins import Solver
from checkmate_solvers.cutmilp import CutMilp
from checkmate_solvers.local.solver import LocalSearch
from checkmate_solvers.mincut import MinCut
from checkmate_solvers.search import Search

__all__ = ["Auto"]

_LEAST_S = 0.1
"""Seconds that a heuristic gets even when the time is up."""
_BURST = 6
"""Cycles of step 4."""
_BURST_SHARE = 0.15
"""Of the time that is left: what step 4 may use at most."""
_MILP_SHARE = 0.35
"""Of the time that is left: what the cut MILP may use at most, each time."""
_LAST_RESORT_S = 10.0
"""Seconds for the end of step 8, whatever the time limit: twice those of the search that names the least budget in
errors, so that a budget that was named also works."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Auto:
    """All steps of the module in turn, with one incumbent and one bound.

    Attributes:
        min_cut: steps 3 and 6.
        cut_milp: steps 5 and 6.
        local: steps 4 and 7.
        rules: step 8.
    """

    min_cut: MinCut = field(default_factory=MinCut)
    cut_milp: CutMilp = field(default_factory=CutMilp)
    local: LocalSearch = field(default_factory=LocalSearch)
    rules: Solver = field(default_factory=BestHeuristic)

    def solve(self, problem: Problem) -> Solution:
        """Follow the decision tree."""
        search = Search(problem)
        if search.start():
            return search.solution()
        try:
            self._follow(search)
        except KeyboardInterrupt:
            if search.sequence is None:
                raise
        return search.solution()

    def _follow(self, search: Search) -> None:
        """Steps 2 to 8."""
        problem = search.problem
        search.decode({}, "eviction")
        if math.isinf(search.cost):
            self._ask(search, FirstFit(), "first-fit")
        for fixed_order in (problem.fixed_order, not problem.fixed_order):
            if not search.done:
                strongest = self.min_cut.improve(search, fixed_order=fixed_order)
                if fixed_order == problem.fixed_order:
                    with search.within(_BURST_SHARE):
                        self.local.improve(search, cycles=_BURST)
                with search.within(_MILP_SHARE):
                    self.cut_milp.improve(search, fixed_order=fixed_order, first=strongest)
        self.local.improve(search, search.seeds)
        if math.isinf(search.cost) and math.isfinite(search.bound):
            self._ask(search, self.rules, "rules")
        if math.isinf(search.cost) and math.isfinite(search.bound):
            least = minimum_budget(problem.graph, time_limit=_LAST_RESORT_S, fixed_order=problem.fixed_order)
            search.offer(_sequence(least), "minimum budget")

    def _ask(self, search: Search, heuristic: Solver, origin: str) -> None:
        """Offer what one of core's heuristics finds in the time that is left."""
        found = heuristic.solve(replace(search.problem, time_limit=max(search.left_s, _LEAST_S)))
        search.offer(_sequence(found), found.origin.get("schedule", origin))


def _sequence(found: Solution) -> list[int] | None:
    return None if found.schedule is None else found.schedule.sequence.tolist()

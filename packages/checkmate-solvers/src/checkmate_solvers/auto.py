"""The decision tree of ``solver="auto"``: each step starts where the one before left a gap.

1. The budget is below the floor: infeasible, proved. It has room for everything: done.
2. The cheapest rule: static eviction for small graphs, Chen's √n segments for others. The budget is then
   tightened from the keep-everything peak downwards, in machine code: a schedule in milliseconds, whatever
   the size. Of a chain, binomial checkpointing gives a bound, and it or a dynamic programme a schedule.
3. The minimum cut at the most crowded moment: a bound, and often a better schedule.
4. One cycle of local search, and more if the gap is small already; small graphs come to the first at the end.
5. Minimum cuts at several moments, then the cut MILP with more and more of them: better bounds and schedules.
6. The same with the other view of the order, where that makes a difference: if ops may not be reordered, for
   its bounds (each MILP is cut short somewhere else); if they may, for its schedules, from one moment each.
7. Local search, from the best schedule and from what each other step found.
8. If there is no schedule yet: the best of the published rules; then the schedule of the least budget for
   which any is found (:meth:`Auto.minimum_budget`), if it fits.

   Steps 2 and 8 have a patient deadline: on a busy machine they do as much as on an idle one.
9. If the gap is good enough by now: a few more cycles of local search, as that little costs little.

Until the machine code of the local search is compiled, once on a machine, the steps do without it: plans are
repaired by eviction, and step 7 waits for it as long as there is time.

With two threads or more, steps 5 and 6 go on in a process of their own, beside the others: see
:mod:`checkmate_solvers.worker`. What it finds depends on how fast it is.

A gap is good enough at 0.05 %: it then goes on at step 9, and stops. Else it stops when many cycles in a row
found nothing better, or at the time limit. Nothing depends on chance but through the seed; only time limits
cut in where the machine decides, that of the problem and the share of it that a step gets: the same problem
gets the same answer while none of them does. An interrupt (Ctrl-C) ends the search; the answer is the best so
far.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from checkmate import Problem, Schedule, Solution, floor, keep_all_peak, minimum_budget
from checkmate.heuristics import BestHeuristic, ChenSqrtN, FirstFit
from checkmate.plugins import Solver
from checkmate.solving import Deadline
from checkmate_solvers.chains import Chain, ChainDP, Revolve, recognise
from checkmate_solvers.chains.proof import binomial_bound
from checkmate_solvers.local_search import LocalSearch
from checkmate_solvers.moments.cut_milp import CutMilp
from checkmate_solvers.moments.min_cut import MinCut, min_cut
from checkmate_solvers.moments.moment import crowded_ops, moment_at
from checkmate_solvers.search.incumbent import Search
from checkmate_solvers.tightening import tightened

__all__ = ["STEPS", "Auto"]

STEPS = (
    "segments",
    "eviction",
    "chains",
    "tightening",
    "first-cut",
    "first-cycle",
    "min-cut",
    "cut-milp",
    "other-order",
    "local-search",
    "last-resort",
    "polishing",
)
"""What can be left out, to see what it is good for: the first four are parts of step 2, then come steps 3
and 4, the minimum cuts and the MILPs of steps 5 and 6, and steps 6, 7, 8 and 9."""
_ALIKE = 1e-4
"""Relative difference of the bounds of two views at which they are the same."""
_MILP_SHARE = 0.35
"""Of the time that is left: what the cut MILP may use at most, each time, if there is one process."""
_CYCLES_BEFORE = 24
"""Cycles of step 7 until the other process has found plans to start from, if there is one."""
_NEARLY, _MORE_CYCLES = 2e-3, 8
"""Relative gap at which step 4 goes on, as the bound is good already, and for how many cycles."""
_POLISHING = 3
"""Cycles of step 9."""
_WAIT_S = 0.1
"""Seconds between two looks at the clock while the other process works alone."""
_CHAIN_SHARE = 0.2
"""Of the time that is left: what each of the solvers for chains may use at most."""
_SOON_SHARE = 0.05
"""Of the time that is left: what tightening may use at most before them."""
_RECOGNISING, _SEGMENTING, _TIGHTENING, _CUTTING = 2, 4, 6, 7
"""Recognising a chain, and the least that the next steps do, take about as long as judging this many
schedules: they are left out where there is less time."""
_RULES_SHARE = 1 / 3
"""Of the time limit: what rules may use, of a small graph, to find its least budget."""
_SEGMENTS = "chen-sqrt-n"
"""What found the schedule of the cheapest rule."""
_TIGHTENING_SHARE = 0.6
"""Of the time that is left: what tightening may use at most in step 2: twice the share that errors use to
name the least budget, so that a budget that was named also works."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Auto:
    """All steps of the module in turn, with one incumbent and one bound.

    Attributes:
        min_cut: steps 3, 5 and 6.
        cut_milp: steps 5 and 6.
        local: steps 4 and 7.
        rules: step 8.
        chains: step 2, for chains.
        without: those of :data:`STEPS` to leave out.
    """

    min_cut: MinCut = field(default_factory=MinCut)
    cut_milp: CutMilp = field(default_factory=CutMilp)
    local: LocalSearch = field(default_factory=LocalSearch)
    rules: Solver = field(default_factory=BestHeuristic)
    chains: Solver = field(default_factory=ChainDP)
    without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Reject what is no step."""
        if unknown := sorted(set(self.without) - set(STEPS)):
            raise ValueError(f"no step {', '.join(map(repr, unknown))}: the steps are {', '.join(STEPS)}")

    @property
    def _brief(self) -> CutMilp:
        """The cut MILP with one moment, and no more."""
        return replace(self.cut_milp, moments=0, priced=1)

    def solve(self, problem: Problem) -> Solution:
        """Follow the decision tree."""
        search = Search(problem)
        if search.start():
            return search.solution()
        with search.interruptible(), search.helped(self.without):
            self._first(search)
            self._quick(search)
            if problem.threads == 1:
                self.prove(search, _MILP_SHARE)
            self._search(search)
            if problem.threads > 1 and not search.proved_elsewhere:  # it died
                self.prove(search, 1.0)
            if self._has("last-resort"):
                self._last_resort(search)
            if search.done and self._has("polishing"):
                with search.polished():
                    self.local.improve(search, search.seeds, cycles=_POLISHING)
        return search.solution()

    def prove(self, search: Search, share: float = 1.0) -> None:
        """Steps 5 and 6: bounds, and schedules that come with them.

        Args:
            search: what is known so far.
            share: of the time that is left, what the cut MILP may use at most, each time.
        """
        asked = search.problem.fixed_order
        for fixed_order in (asked, not asked):
            if search.done:
                break
            if not search.has_time_to_judge(_CUTTING):
                break
            if self._has("min-cut"):
                strongest = self.min_cut.improve(search, fixed_order=fixed_order)
            else:
                strongest = next(iter(crowded_ops(search.problem, 1)), None)
            proves = fixed_order <= asked
            milp = self.cut_milp if proves else self._brief
            if self._has("cut-milp"):
                with search.within(share):
                    milp.improve(search, fixed_order=fixed_order, first=strongest)
            if strongest is None or not self._has("other-order") or _is_certain(search.problem, strongest):
                break

    def minimum_budget(self, problem: Problem) -> Solution:
        """A schedule with as low a peak as possible: by tightening, and for small graphs by rules as well."""
        search = Search(problem)
        graph, fixed_order = problem.graph, problem.fixed_order
        found = [problem.start]
        compiled = search.has_machine_code(even_if_small=True)
        if search.small or not compiled:
            share = problem.time_limit * (_RULES_SHARE if compiled else 1.0)
            rules = minimum_budget(graph, solver=FirstFit(), time_limit=share, fixed_order=fixed_order)
            found.append(rules.schedule)
        if compiled:
            found.append(Schedule.from_sequence(graph, _tightened(search, floor(graph).size, search.patient)))
        judged = [Solution.found(problem, schedule) for schedule in found if schedule is not None]
        return min(judged, key=lambda solution: solution.peak or 0)

    def _has(self, step: str) -> bool:
        return step not in self.without

    def _first(self, search: Search) -> None:
        """Step 2: any schedule, soon; of chains a good one, and a bound."""
        chain = False
        if self._has("chains") and search.has_time_to_judge(_RECOGNISING):
            chain = isinstance(recognise(search.problem.graph), Chain)
        if search.small and self._has("eviction"):
            search.decode({}, "eviction")
        elif not search.small and self._has("segments"):
            self._segment(search)
        self._tighten(search, _SOON_SHARE if chain else _TIGHTENING_SHARE)
        if chain:
            search.prove(binomial_bound(search.problem), "binomial checkpointing")
            for origin, solver in (("revolve", Revolve()), ("chain-dp", self.chains)):
                if not search.done:
                    with search.within(_CHAIN_SHARE):
                        _ask(search, solver.solve, search.problem, origin)
            self._tighten(search, _TIGHTENING_SHARE)

    def _segment(self, search: Search) -> None:
        """Keep what the cheapest rule finds, as it is."""
        left_s = search.patient.left_s
        if search.has_time_to_judge(_SEGMENTING):
            found = ChenSqrtN(sweep=False).solve(replace(search.problem, time_limit=left_s, on_progress=None))
            if found.timeline is not None:
                search.keep_if_better(found.timeline, _SEGMENTS, seed=False)

    def _tighten(self, search: Search, share: float) -> None:
        """If no schedule is known but that of segments, tighten in a share of the time that is left."""
        if search.found_by not in ("", _SEGMENTS) or (search.found_by and search.done):
            return
        able = search.has_time_to_judge(_TIGHTENING) and search.has_machine_code(even_if_small=True)
        if self._has("tightening") and able:
            sequence = _tightened(search, search.problem.budget, search.clock.part(share))
            search.judge(sequence, "tightening")
        if not search.found_by and search.problem.start is not None:
            search.judge(search.problem.start.sequence.tolist(), "known before")

    def _quick(self, search: Search) -> None:
        """Steps 3 and 4; if another process does step 5, its beginning as well, until that has started."""
        fixed_order = search.problem.fixed_order
        if not search.done and self._has("first-cut") and search.has_time_to_judge(_CUTTING):
            replace(self.min_cut, moments=1).improve(search, fixed_order=fixed_order)
        if self._has("first-cycle"):
            if not search.small:
                self.local.improve(search, cycles=1)
            if search.gap <= _NEARLY:
                self.local.improve(search, search.seeds, cycles=_MORE_CYCLES)
        if search.problem.threads > 1 and not search.done:
            soon = replace(self, cut_milp=self._brief, without=(*self.without, "other-order"))
            soon.prove(search, _MILP_SHARE)

    def _search(self, search: Search) -> None:
        """Step 7; if another process does step 5, until that has ended as well."""
        if self._has("local-search") and search.await_machine_code():
            if search.problem.threads > 1:
                self.local.improve(search, search.seeds, cycles=_CYCLES_BEFORE)
            self.local.improve(search, search.seeds)
        searched = search.cost
        while not search.done and search.hear(_WAIT_S):
            pass
        if search.cost < searched and self._has("local-search"):
            self.local.improve(search)

    def _last_resort(self, search: Search) -> None:
        """Step 8: slow or cost-blind fallbacks, tried only while no schedule is known."""
        problem = search.problem
        if math.isinf(search.cost) and math.isfinite(search.bound):
            _ask(search, self.rules.solve, problem, "rules")
        if math.isinf(search.cost) and math.isfinite(search.bound):
            roomy = replace(problem, budget=keep_all_peak(problem.graph))
            _ask(search, self.minimum_budget, roomy, "minimum budget")


def _ask(
    search: Search,
    ask: Callable[[Problem], Solution],
    problem: Problem,
    origin: str,
) -> None:
    """Offer what a solver finds in the time that is left."""
    left_s = search.clock.left_s
    if left_s > 0:
        found = ask(replace(problem, time_limit=left_s, on_progress=None))
        if found.schedule is not None:
            search.offer(found.schedule.sequence.tolist(), found.origin.get("schedule", origin))


def _tightened(search: Search, target: int, deadline: Deadline) -> list[int]:
    """A sequence whose peak is at most ``target`` bytes, or as low as was found in time, by machine code."""
    problem = search.problem
    order, seed = problem.fixed_order, problem.seed
    return tightened(problem.graph, target, fixed_order=order, seed=seed, deadline=deadline)


def _is_certain(problem: Problem, at: int) -> bool:
    """Whether all that the base order says of a moment is certain: both views prove the same."""
    free, fixed = (
        min_cut(moment_at(problem.graph, problem.budget, at, fixed_order=fixed_order)).recompute
        for fixed_order in (False, True)
    )
    return free >= fixed * (1 - _ALIKE)

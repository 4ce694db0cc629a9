"""The decision tree of ``solver="auto"``: each step starts where the one before left a gap.

1. If the budget is below the floor, the problem is infeasible, which is a proof. If the budget has room for
   everything, that is the answer. Graphs of up to 60 ops are searched exhaustively: that often ends with the
   optimum, and else after a fraction of a second.
2. A first schedule: Chen's √n segments. Then :mod:`~checkmate_solvers.tightening`: a schedule
   in milliseconds, whatever the size. A schedule that the problem names is kept if it is cheaper,
   after a repair if it is over the budget. For a chain, binomial checkpointing gives a bound, and it or a
   dynamic programme gives a schedule. If no schedule is found, a part of the graph may prove that none exists
   (:mod:`checkmate_solvers.parts`).
3. The minimum cut at the most crowded moment: a bound, and often a better schedule.
4. One cycle of local search, or several from scratch if no schedule is known; and more if the gap of a
   known schedule is small or wide.
5. Minimum cuts at several moments, then the cut MILP for a few of them: better bounds and schedules. If the
   gap is wide, the graph not small, and there is one process, linear relaxations alone, of twice the moments:
   their bounds are nearly as high, in less time.
6. Local search from the best schedules of all steps.
7. Slow or cost-blind fallbacks, only while no schedule is known: the best of the published rules; then the
   schedule of the least budget for which any is found (:meth:`Auto.minimum_budget`), if it fits.

   Steps 2 and 7 have a patient deadline: on a busy machine they do as much as on an idle one.

With two threads or more, step 5 goes on in a second process, beside the others
(:mod:`checkmate_solvers.worker`). Its findings depend on its speed.

The search stops at a gap of 0.05 %, when many cycles in a row found nothing better, or at the time limit. All
random choices come from the seed, and all work is counted. Only time limits depend on the machine: the
problem's, and the share of it that a step gets. The same problem gets the same answer unless one of them
cuts in. An interrupt (Ctrl-C) ends the search; the answer is the best so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from checkmate import Problem, Schedule, Solution, floor, keep_all_peak, minimum_budget, simulate
from checkmate.analysis import needed_ops
from checkmate.heuristics import BestHeuristic, ChenSqrtN, FirstFit
from checkmate.plugins import Solver
from checkmate_solvers.chains import Chain, ChainDP, Revolve, recognise
from checkmate_solvers.chains.proof import binomial_bound
from checkmate_solvers.exhaustive import exhaust
from checkmate_solvers.local_search import Cycles, LocalSearch
from checkmate_solvers.moments.cut_milp import CutMilp
from checkmate_solvers.moments.min_cut import MinCut
from checkmate_solvers.parts import is_infeasible, least_peak_bound
from checkmate_solvers.search import Incumbent, answer_easy_cases, keep, repair
from checkmate_solvers.tightening import tightened
from checkmate_solvers.worker import Worker

__all__ = ["STEPS", "Auto", "cut_moments"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """The time that a step needs, and that it may use.

    Attributes:
        cost: time that the step needs, in simulations of a schedule; it is skipped if less time is left.
        share: the most of the remaining time, as a fraction, that one run of the step may take.
        other_share: the share in the case that a comment in the table calls "other".
    """

    cost: float = 0.0
    share: float = 1.0
    other_share: float = 1.0


_TABLE = {
    "exhaustive": _Step(share=0.5),
    "segments": _Step(cost=4),
    # The cost is for recognising a chain; each of the two chain solvers gets the share.
    "chains": _Step(cost=2, share=0.2),
    # Other: the first try, as chain solvers or local search may be quicker. The share is twice what errors
    # use to find the least budget that they name, so that a solve with that budget works, too.
    "tightening": _Step(cost=6, share=0.6, other_share=0.1),
    "parts": _Step(share=0.1),
    "first-cut": _Step(cost=7),
    "first-cycle": _Step(share=0.5),
    "min-cut": _Step(cost=7),
    # In one process. Other: at a small gap, as a MILP may close it; at wider gaps search gains more (ADR 24).
    "cut-milp": _Step(share=0.25, other_share=0.4),
    "local-search": _Step(),
    "last-resort": _Step(),
}
STEPS = tuple(_TABLE)
"""Names of steps that can be left out, to measure their use: one of step 1, four of step 2, then steps 3 and
4, the minimum cuts and the MILPs of step 5, and steps 6 and 7."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    """Where the tree branches. Gaps are relative to the cost."""

    states: tuple[tuple[int, int], ...] = ((30, 10_000), (60, 2_000))
    """Pairs (n, s): a graph of up to n needed ops is searched in up to s states; larger ones are not."""
    nearly: float = 2e-3  # gap up to which step 4 goes on, as the bound is good
    wide: float = 0.03  # gap above which step 4 goes on, as the schedule is bad (ADR 29)
    more_cycles: int = 8  # cycles with which step 4 goes on, or begins if no schedule is known
    close: float = 0.01  # gap up to which a MILP may close it (ADR 24)
    few_ops: int = 300  # up to this many, MILPs are quick enough to be solved at a wide gap, too (ADR 29)
    wait_s: float = 0.1  # seconds between two looks at the clock while the second process works alone
    rules_share: float = 0.2  # of the time limit, for rules to find a least budget when no time is left


_SETTINGS = _Settings()
_SEGMENTS, _KNOWN = "chen-sqrt-n", "known before"
"""The origins of the schedule in segments, and of the one that the problem names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Auto:
    """All steps of the module in turn, with one incumbent and one bound.

    Attributes:
        min_cut: solves steps 3 and 5.
        cut_milp: solves step 5.
        local: solves steps 4 and 6.
        rules: solves step 7.
        chains: solves step 2, for chains.
        without: names of :data:`STEPS` to leave out.
    """

    uses_start: ClassVar[bool] = True

    min_cut: MinCut = field(default_factory=MinCut)
    cut_milp: CutMilp = field(default_factory=CutMilp)
    local: LocalSearch = field(default_factory=LocalSearch)
    rules: Solver = field(default_factory=BestHeuristic)
    chains: Solver = field(default_factory=ChainDP)
    without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.without) - set(STEPS)):
            raise ValueError(f"no step {', '.join(map(repr, unknown))}: the steps are {', '.join(STEPS)}")

    def solve(self, problem: Problem) -> Solution:
        """Follow the decision tree."""
        best = Incumbent(problem)
        if answer_easy_cases(best) or self._exhausted(best):
            return best.solution()
        with best.interruptible(), self._with_worker(best) as worker:
            self._first_schedule(best)
            self._refute(best)
            self._first_cut(best)
            cycles = Cycles(self.local, best)
            self._first_cycle(best, cycles)
            # a second process does step 5; until it is loaded, only the beginning is done here
            brief = self if worker is None else replace(self, cut_milp=replace(self.cut_milp, moments=0))
            milps = _TABLE["cut-milp"]
            brief.cut_moments(best, milps.other_share if best.gap <= _SETTINGS.close else milps.share)
            self._search(best, cycles, worker)
            self._last_resort(best)
        return best.solution()

    def _exhausted(self, best: Incumbent) -> bool:
        """The last part of step 1; return whether it answers the problem."""
        if self._may("exhaustive", best) and (states := _states(best)):
            until = best.clock.current.part(_TABLE["exhaustive"].share)
            found = exhaust(best.problem, ceiling=best.cost, states=states, deadline=until)
            if found.sequence is not None:
                best.keep_if_better(found.sequence, "exhaustive search")
            best.raise_bound(found.bound, "exhaustive search")
        return best.done

    def _first_schedule(self, best: Incumbent) -> None:
        """Step 2."""
        problem = best.problem
        known = None if problem.start is None else simulate(problem.graph, problem.start)
        if known is not None and known.peak > problem.budget:
            repair(best, known.schedule.sequence.tolist(), _KNOWN)
        chain = self._may("chains", best) and isinstance(recognise(problem.graph), Chain)
        if self._may("segments", best):
            asked = replace(problem, time_limit=best.clock.patient.left_s, on_progress=None)
            segments = ChenSqrtN(sweep=False).solve(asked).timeline
            if segments is not None:  # not pruned, as local search does not start from it
                best.keep_if_better(segments, _SEGMENTS, seed=False)
        self._tighten(best, _TABLE["tightening"].other_share)
        if chain:
            best.raise_recompute_bound(binomial_bound(problem), "binomial checkpointing")
            for origin, solver in (("revolve", Revolve()), ("chain-dp", self.chains)):
                if not best.done:
                    with best.clock.within(_TABLE["chains"].share):
                        _ask(best, solver.solve, problem, origin)
            self._tighten(best, _TABLE["tightening"].share)
        if known is not None:
            best.keep_if_better(known, _KNOWN, seed=known.cost < best.cost)

    def _tighten(self, best: Incumbent, share: float) -> None:
        """Tighten in a share of the time left, unless a better schedule than the one in segments is known."""
        if best.found_by not in ("", _SEGMENTS) or (best.found_by and best.done):
            return
        if self._may("tightening", best):
            sequence = tightened(best.problem, best.clock.current.part(share))
            best.keep_if_better(sequence, "tightening")

    def _refute(self, best: Incumbent) -> None:
        """The last part of step 2: while no schedule is known, look for a proof that there is none."""
        until = best.clock.current.part(_TABLE["parts"].share)
        if math.isinf(best.cost) and self._may("parts", best) and is_infeasible(best.problem, deadline=until):
            best.raise_bound(math.inf, "a part of the graph")

    def _first_cut(self, best: Incumbent) -> None:
        """Step 3."""
        if not best.done and self._may("first-cut", best):
            replace(self.min_cut, moments=1).improve(best)

    def _first_cycle(self, best: Incumbent, cycles: Cycles) -> None:
        """Step 4."""
        able, share = self._may("first-cycle", best), _TABLE["first-cycle"].share
        if able:
            with best.clock.within(share):
                cycles.run(1 if best.found_by else _SETTINGS.more_cycles)
        self._tighten(best, _TABLE["tightening"].share)
        if able and (best.gap <= _SETTINGS.nearly or _is_wide(best)):
            with best.clock.within(share):
                cycles.run(_SETTINGS.more_cycles)

    def cut_moments(self, best: Incumbent, share: float = 1.0) -> None:
        """Step 5: bounds, and their schedules; the cut MILP gets ``share`` of the remaining time."""
        bounds = self.min_cut.improve(best) if not best.done and self._may("min-cut", best) else {}
        if not best.done and self._may("cut-milp", best):
            moments = self.cut_milp.moments
            many = best.problem.graph.n_ops > _SETTINGS.few_ops
            linear = share < 1 and moments and many and _is_wide(best)
            milp = replace(self.cut_milp, moments=2 * moments, nodes=0) if linear else self.cut_milp
            with best.clock.within(share):
                milp.improve(best, bounds=bounds)

    def _search(self, best: Incumbent, cycles: Cycles, worker: Worker | None) -> None:
        """Step 6; if a second process does step 5, until that has ended as well."""
        able = self._may("local-search", best)
        if able:
            cycles.run()
        if worker is None:
            return
        searched = best.cost
        while not best.done and worker.running:
            worker.poll(min(_SETTINGS.wait_s, max(best.clock.left_s, 0.0)))
        if able and best.cost < searched:
            cycles.run()
        if not worker.finished:  # it died
            self.cut_moments(best)

    def _last_resort(self, best: Incumbent) -> None:
        """Step 7."""
        problem = best.problem
        roomy = replace(problem, budget=max(keep_all_peak(problem.graph), 1))
        steps = ("rules", self.rules.solve, problem), ("minimum budget", self.minimum_budget, roomy)
        for origin, ask, asked in steps:
            if self._may("last-resort", best) and math.isinf(best.cost) and math.isfinite(best.bound):
                _ask(best, ask, asked, origin)

    def minimum_budget(self, problem: Problem) -> Solution:
        """A schedule with as low a peak as possible: by tightening, or by rules if that finds nothing.

        Up to 60 ops, exhaustive search often ends with the least peak.
        """
        best = Incumbent(problem)
        if self._may("exhaustive", best) and (least := _least_peak(best)) is not None:
            return least
        graph, order, patient = problem.graph, problem.fixed_order, best.clock.patient
        until = patient.part(_TABLE["parts"].share)
        lowest = least_peak_bound(graph, fixed_order=order, deadline=until)
        sequence = tightened(replace(problem, budget=max(lowest, 1)), patient)
        found = [Solution.found(problem, Schedule.from_sequence(graph, sequence))]
        if found[0].peak == keep_all_peak(graph):
            limit = max(patient.left_s, _SETTINGS.rules_share * problem.time_limit)
            rules = minimum_budget(graph, solver=FirstFit(), time_limit=limit, fixed_order=order)
            found.append(replace(rules, problem=problem))
        if problem.start is not None:
            found.append(Solution.found(problem, problem.start))
        return min(found, key=lambda solution: solution.peak or 0)

    def _may(self, step: str, best: Incumbent) -> bool:
        """Whether a step is not left out, and there is time for it."""
        cost = _TABLE[step].cost
        return step not in self.without and (not cost or best.clock.has_time_for(cost))

    @contextmanager
    def _with_worker(self, best: Incumbent) -> Iterator[Worker | None]:
        """Run step 5 in a second process inside this block, if the problem allows two threads."""
        if best.problem.threads == 1:
            yield None
            return
        problem = replace(best.problem, time_limit=max(best.clock.left_s, _SETTINGS.wait_s))
        worker = Worker(best, problem, self.without)
        best.poll = worker.poll
        try:
            yield worker
        finally:
            worker.stop()


def cut_moments(best: Incumbent, without: Sequence[str]) -> None:
    """Step 5 alone, as the second process runs it."""
    Auto(without=tuple(without)).cut_moments(best)


def _is_wide(best: Incumbent) -> bool:
    """Whether a schedule is known, and its gap is wide."""
    return _SETTINGS.wide < best.gap < math.inf


def _states(best: Incumbent) -> int:
    """How many states exhaustive search looks at, at most; 0 = the graph is too large for it."""
    n_ops = int(needed_ops(best.problem.graph).sum())
    return next((states for most, states in _SETTINGS.states if n_ops <= most), 0)


def _least_peak(best: Incumbent) -> Solution | None:
    """The schedule with the least peak, by exhaustive searches; None if that takes too long."""
    problem, lowest = best.problem, floor(best.problem.graph).size
    if not (states := _states(best)):
        return None
    order = np.flatnonzero(needed_ops(problem.graph)).tolist()
    least = Solution.found(problem, Schedule.from_sequence(problem.graph, order))
    while (peak := least.peak or 0) > lowest:
        asked = replace(problem, budget=max((lowest + peak) // 2, 1))
        until = best.clock.patient.part(_TABLE["exhaustive"].share)
        found = exhaust(asked, any_cost=True, states=states, deadline=until)
        if found.sequence is not None:
            least = Solution.found(problem, Schedule.from_sequence(problem.graph, found.sequence))
        elif math.isinf(found.bound):
            lowest = asked.budget + 1
        else:
            return None
    return least


def _ask(best: Incumbent, ask: Callable[[Problem], Solution], problem: Problem, origin: str) -> None:
    """Keep the schedule that a solver finds in the remaining time, if it fits and is the best."""
    left_s = best.clock.current.left_s
    if left_s > 0:
        found = ask(replace(problem, time_limit=left_s, on_progress=None))
        if found.schedule is not None:
            keep(best, found.schedule.sequence.tolist(), found.origin.get("schedule", origin))

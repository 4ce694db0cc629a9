"""The cut MILP: what to keep at a few moments of the schedule, decided exactly and together.

:mod:`checkmate_solvers.moments.program` has the program. The first moment is the one at which memory is
scarcest; alone it is nearly enough, and its MILP is solved first. Other moments are added one at a time: of
those that :mod:`checkmate_solvers.moments.shortage` proposes, the one that raises the bound of the linear
relaxation most, as long as it raises it enough. Relaxations are quick, and a further moment never weakens
them. The rest of the time is for the MILP of all moments; if it ends early, one more moment is added.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from checkmate import Problem, Solution
from checkmate_solvers.engines import Highs
from checkmate_solvers.moments.min_cut import MinCut
from checkmate_solvers.moments.moment import Decision, Moment, crowded_ops, moment_at
from checkmate_solvers.moments.program import Moments
from checkmate_solvers.moments.shortage import promising
from checkmate_solvers.search import Incumbent, answer_easy_cases, apply

__all__ = ["CutMilp", "solve_cuts"]

_GAP = 3e-5
"""A MILP stops at this gap, relative to the cost of the whole schedule (its objective is recomputation)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    """Time for the MILPs, and for adding moments by linear relaxations (measured in ADR 24 and 29)."""

    cost: float = 18  # of building a MILP, in simulations for each moment; skipped if less time is left
    bound_share: float = 0.4  # of the remaining time, at most, to prove a bound for a published method
    close: float = 0.01  # relative gap up to which the MILP of the first moment alone may close it
    first_share_close: float = 2 / 3  # of the remaining time, at most, for that MILP at such a gap
    first_share: float = 1 / 6  # of the remaining time, at most, for that MILP at a wider gap
    growing_share: float = 0.75  # of the remaining time, at most, to add moments
    trying_share: float = 1 / 3  # of the time left to add moments, at most, to choose the next one
    worth: float = 0.005  # a moment is added if it raises the relaxation's bound by this part of it
    few: int = 2  # moments that are tried at least
    many: int = 6  # after this many tries, a moment is tried only if its estimate beats the highest rise


_SETTINGS = _Settings()


@dataclass(frozen=True, slots=True, kw_only=True)
class CutMilp:
    """Solve the cut MILP for one moment, then for some more together.

    Attributes:
        moments: the most moments to add; MILPs with more take long, and hardly prove more.
        nodes: the most branch-and-bound nodes of each MILP: a limit that does not depend on the machine; 0 =
            linear relaxations alone, which find no schedules.
    """

    moments: int = 4
    nodes: int = 2000

    def solve(self, problem: Problem) -> Solution:
        """Find bounds and schedules; schedules that don't fit are repaired."""
        best = Incumbent(problem)
        if not answer_easy_cases(best):
            with best.interruptible():
                self.improve(best, bounds=MinCut(plans=0).improve(best))
        return best.solution()

    def bound(self, best: Incumbent) -> None:
        """Raise the bound of a published method, whose own bound covers only its space; keep no schedules."""
        if not best.done:
            limit = _SETTINGS.bound_share * best.clock.left_s
            other = Incumbent(replace(best.problem, time_limit=limit, on_progress=None))
            self.improve(other, bounds=MinCut(plans=0).improve(other))
            best.raise_bound(other.bound, "cut-milp")

    def improve(self, best: Incumbent, *, bounds: Mapping[int, float] | None = None) -> None:
        """Prove bounds, and apply the decisions that come with them.

        ``bounds`` has the bound that each candidate for the first moment proves, by its op; the highest is
        taken. By default the only candidate is the most crowded moment.
        """
        bounds = bounds or dict.fromkeys(crowded_ops(best.problem, 1), 0.0)
        if not bounds or best.done or not best.clock.has_time_for(_SETTINGS.cost):
            return
        programs = _Programs(best, self.nodes)
        first = (max(bounds, key=bounds.__getitem__),)
        close = best.gap <= _SETTINGS.close
        programs.decide(first, _SETTINGS.first_share_close if close else _SETTINGS.first_share)
        chosen = programs.grown(first, self.moments)
        while programs.decide(chosen) and len(chosen) <= self.moments:
            chosen, _ = programs.with_one_more(chosen)


def solve_cuts(
    moments: Sequence[Moment], *, time_limit: float, nodes: int, gap: float = _GAP, linear: bool = False
) -> Decision:
    """Solve the MILP of these moments, or with ``linear`` its relaxation, whose decision is rounded.

    The moments are in base order; if schedules may reorder, each must be an ancestor of the next. The gap at
    which to stop is relative to the recomputation.
    """
    if any(moment.room < moment.pinned_size for moment in moments):
        return Decision(recompute=math.inf, keep={})
    model = Moments(moments)
    program = model.program.relaxed() if linear else model.program
    outcome = Highs(nodes=nodes).solve(program, time_limit=time_limit, gap=gap)
    proved, values = max(outcome.bound, 0.0) * model.unit, outcome.values
    keep, again = ({}, None) if values is None else (model.kept(values), model.again(values))
    return Decision(recompute=proved, keep=keep, finished=outcome.finished, again=again)


class _Programs:
    """The MILPs and relaxations of one problem, each solved once; a moment is given by its op."""

    def __init__(self, best: Incumbent, nodes: int) -> None:
        self.best, self.nodes = best, nodes
        graph, budget, fixed_order = best.problem.graph, best.problem.budget, best.problem.fixed_order
        self._solved: dict[tuple[int, ...], tuple[Decision, float]] = {}  # and seconds that bring no more
        self._moment = cache(lambda at: moment_at(graph, budget, at, fixed_order=fixed_order))
        self._relaxed = cache(lambda ops: self._solve(ops, time_limit=best.clock.left_s, linear=True))

    def decide(self, chosen: tuple[int, ...], share: float = 1.0) -> bool:
        """Solve the MILP of these moments in a share of the time left, apply it; return whether it ended."""
        best, left_s = self.best, self.best.clock.left_s
        if not chosen or best.done:
            return False
        known, enough_s = self._solved.get(chosen, (None, 0.0))
        limit, able = share * left_s, best.clock.has_time_for(_SETTINGS.cost * len(chosen))
        if not self.nodes or not able or limit <= enough_s:
            return known is not None and known.finished
        decision = self._solve(chosen, time_limit=limit, gap=best.recompute_gap(_GAP))
        ended = decision.finished or left_s - best.clock.left_s < limit  # or nodes ran out
        self._solved[chosen] = decision, math.inf if ended else limit
        if decision.keep and not best.done:
            apply(best, decision.keep, "cut-milp")
        return decision.finished

    def grown(self, chosen: tuple[int, ...], most: int) -> tuple[int, ...]:
        """Add moments, up to ``most``, while each raises the relaxation's bound by a good part.

        A step begins only if more time is left than the last one took: later steps take longer.
        """
        clock, took_s = self.best.clock, 0.0
        with clock.within(_SETTINGS.growing_share if self.nodes else 1.0):
            while len(chosen) <= most and not self.best.done and took_s < clock.left_s:
                left_s = clock.left_s
                larger, rise = self.with_one_more(chosen)
                if rise <= _SETTINGS.worth * self._relaxed(chosen).recompute:
                    break
                chosen, took_s = larger, left_s - clock.left_s
        return chosen

    def with_one_more(self, chosen: tuple[int, ...]) -> tuple[tuple[int, ...], float]:
        """Add the moment that raises the relaxation's bound most; return the moments and the rise.

        If there is no further moment, no moments are returned.
        """
        best = self.best
        until, base = best.clock.deadline.part(_SETTINGS.trying_share), self._relaxed(chosen)
        decision, _ = self._solved.get(chosen, (base, 0.0))
        decision, found = decision if decision.keep else base, tuple[int, ...]()
        most, tried = 0.0, 0
        for at, estimate in promising(best, chosen, decision, self._moment).items():
            good = tried >= _SETTINGS.many and most >= max(estimate, _SETTINGS.worth * base.recompute)
            if best.done or good or (until.passed and tried >= _SETTINGS.few):
                break
            larger = tuple(sorted((*chosen, at)))
            rise, tried = self._relaxed(larger).recompute - base.recompute, tried + 1
            if rise > most or not found:
                found, most = larger, max(rise, 0.0)
        return found, most

    def _solve(self, chosen: tuple[int, ...], **options: Any) -> Decision:
        """Solve the MILP of these moments, or its relaxation, and raise the bound."""
        decision = solve_cuts([self._moment(at) for at in chosen], nodes=self.nodes, **options)
        moments = "one moment" if len(chosen) == 1 else f"{len(chosen)} moments"
        self.best.raise_recompute_bound(decision.recompute, f"cut-milp with {moments}")
        return decision

"""The cut MILP: a few moments of the schedule, decided exactly and together.

:mod:`checkmate_solvers.moments.program` has the program. The first moment is that at which memory is
scarcest; alone it is nearly enough, and its MILP is solved at first. Others are added one at a time, as long
as one raises the bound of the linear relaxation by a good part: of those that
:mod:`checkmate_solvers.moments.shortage` proposes, that which raises it most. Relaxations are quick, and no
further moment weakens them. The rest of the time is for the MILP of all; if it ends early, one more is added.
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
from checkmate_solvers.search import Incumbent, answer_easy_cases, follow

__all__ = ["CutMilp", "solve_cuts"]

_GAP = 3e-5
"""Relative to the cost of the whole schedule; the objective counts recomputation only."""
_BUILDING = 18
"""A MILP begins only if there is time to judge this many schedules for each of its moments; building it takes
less."""
_ALONE_SHARE = 0.4
"""Share of the remaining time in which a bound alone is proved."""
_CLOSE, _FIRST_SHARES = 0.01, (2 / 3, 1 / 6)
"""Shares of the remaining time for the MILP of the first moment: at a relative gap up to the first number,
which this MILP alone may close; and above."""
_GROWING_SHARE, _TRYING_SHARE, _WORTH = 0.75, 1 / 3, 0.005
"""Shares of the remaining time in which moments are added, and of that for trying which one is next; and the
least rise of the relaxation's bound, relative to it, that adds one."""
_FEW, _MANY = 2, 6
"""At least the first number of moments are tried; after the second, no more once the highest rise reaches the
next estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutMilp:
    """Solves the cut MILP for one moment, then for some more together.

    Attributes:
        moments: the most moments to add; MILPs with more take long, and hardly prove more.
        nodes: the most branch-and-bound nodes of each MILP: a limit that does not depend on the machine; 0 =
            linear relaxations alone, which find no schedules.
    """

    moments: int = 4
    nodes: int = 2000

    def solve(self, problem: Problem) -> Solution:
        """Bounds and schedules, each schedule repaired."""
        best = Incumbent(problem)
        if not answer_easy_cases(best):
            with best.interruptible():
                self.improve(best, bounds=MinCut(plans=0).improve(best))
        return best.solution()

    def bound(self, best: Incumbent) -> None:
        """Raise the bound of a published method, whose own holds in its space only; keep no schedules."""
        if not best.done:
            limit = _ALONE_SHARE * best.clock.left_s
            other = Incumbent(replace(best.problem, time_limit=limit, on_progress=None))
            self.improve(other, bounds=MinCut(plans=0).improve(other))
            best.raise_bound(other.bound, "cut-milp")

    def improve(self, best: Incumbent, *, bounds: Mapping[int, float] | None = None) -> None:
        """Prove bounds, and follow the decisions that come with them.

        Args:
            best: receives both.
            bounds: candidates for moments, by their ops, and the bound that each proves; the highest is that
                of the first moment. Default the most crowded one alone.
        """
        bounds = bounds or dict.fromkeys(crowded_ops(best.problem, 1), 0.0)
        if not bounds or best.done or not best.clock.has_time_to_judge(_BUILDING):
            return
        programs = _Programs(best, self.nodes)
        first = (max(bounds, key=bounds.__getitem__),)
        programs.decide(first, _FIRST_SHARES[best.gap > _CLOSE])
        chosen = programs.grown(first, self.moments)
        while programs.decide(chosen) and len(chosen) <= self.moments:
            chosen, _ = programs.with_one_more(chosen)


def solve_cuts(
    moments: Sequence[Moment], *, time_limit: float, nodes: int, gap: float = _GAP, linear: bool = False
) -> Decision:
    """Solve the MILP of these moments.

    Args:
        moments: in base order; if schedules may reorder, each must be an ancestor of the next.
        time_limit: seconds.
        nodes: the most branch-and-bound nodes.
        gap: relative to the recomputation, at which to stop.
        linear: solve the linear relaxation instead, and round its decision.
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
    """The programs of one problem; moments are ops."""

    def __init__(self, best: Incumbent, nodes: int) -> None:
        self.best, self.nodes = best, nodes
        graph, budget, fixed_order = best.problem.graph, best.problem.budget, best.problem.fixed_order
        self._solved: dict[tuple[int, ...], tuple[Decision, float]] = {}  # and seconds that bring no more
        self._moment = cache(lambda at: moment_at(graph, budget, at, fixed_order=fixed_order))
        self._relaxed = cache(lambda ops: self._solve(ops, time_limit=best.clock.left_s, linear=True))

    def decide(self, chosen: tuple[int, ...], share: float = 1.0) -> bool:
        """Solve the MILP of these moments in a share of the time left, and follow it; whether it ended."""
        best, left_s = self.best, self.best.clock.left_s
        if not chosen or best.done:
            return False
        known, enough_s = self._solved.get(chosen, (None, 0.0))
        limit, able = share * left_s, best.clock.has_time_to_judge(_BUILDING * len(chosen))
        if not self.nodes or not able or limit <= enough_s:
            return known is not None and known.finished
        decision = self._solve(chosen, time_limit=limit, gap=best.recompute_gap(_GAP))
        ended = decision.finished or left_s - best.clock.left_s < limit  # or nodes ran out
        self._solved[chosen] = decision, math.inf if ended else limit
        if decision.keep and not best.done:
            follow(best, decision.keep, "cut-milp")
        return decision.finished

    def grown(self, chosen: tuple[int, ...], most: int) -> tuple[int, ...]:
        """Add moments, up to ``most``, while each raises the relaxation's bound by a good part.

        A step begins only if more time is left than the last one took: later steps take longer.
        """
        clock, took_s = self.best.clock, 0.0
        with clock.within(_GROWING_SHARE if self.nodes else 1.0):
            while len(chosen) <= most and not self.best.done and took_s < clock.left_s:
                left_s = clock.left_s
                larger, rise = self.with_one_more(chosen)
                if rise <= _WORTH * self._relaxed(chosen).recompute:
                    break
                chosen, took_s = larger, left_s - clock.left_s
        return chosen

    def with_one_more(self, chosen: tuple[int, ...]) -> tuple[tuple[int, ...], float]:
        """These moments and one more, that which raises the relaxation's bound most; and by how much.

        Without any, no moments are returned.
        """
        best, until, base = self.best, self.best.clock.deadline.part(_TRYING_SHARE), self._relaxed(chosen)
        decision, _ = self._solved.get(chosen, (base, 0.0))
        decision, found = decision if decision.keep else base, tuple[int, ...]()
        most, tried = 0.0, 0
        for at, estimate in promising(best, chosen, decision, self._moment).items():
            good = tried >= _MANY and most >= max(estimate, _WORTH * base.recompute)
            if best.done or good or (until.passed and tried >= _FEW):
                break
            larger = tuple(sorted((*chosen, at)))
            rise, tried = self._relaxed(larger).recompute - base.recompute, tried + 1
            if rise > most or not found:
                found, most = larger, max(rise, 0.0)
        return found, most

    def _solve(self, chosen: tuple[int, ...], **options: Any) -> Decision:
        """Solve the MILP of these moments, or its relaxation, and keep the bound."""
        decision = solve_cuts([self._moment(at) for at in chosen], nodes=self.nodes, **options)
        moments = "one moment" if len(chosen) == 1 else f"{len(chosen)} moments"
        self.best.prove(decision.recompute, f"cut-milp with {moments}")
        return decision

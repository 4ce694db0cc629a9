"""The cut MILP: a few moments of the schedule, decided exactly and together.

:mod:`checkmate_solvers.moments.program` has the program; the art is to choose the moments. One alone, that
at which memory is scarcest, is nearly enough. Two are next: with it that at which its decision is most over
the budget, or a second hill of memory beyond a valley. To the better two, moments are added in the same way,
while that raises the bound or is done soon. All of these get little time; then the moments that last raised
the bound get the rest, if their time ran out. If some is left, moments are added to the other two.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from checkmate import Problem, Solution
from checkmate.analysis import liveness
from checkmate_solvers.engines import Highs
from checkmate_solvers.moments.min_cut import MinCut
from checkmate_solvers.moments.moment import Decision, Moment, crowded_ops, moment_at
from checkmate_solvers.moments.program import Moments
from checkmate_solvers.search import Incumbent, answer_easy_cases, follow

__all__ = ["CutMilp", "solve_cuts"]

_GAP = 3e-5
"""Relative to the cost of the whole schedule; the objective counts recomputation only."""
_PART = 6
"""A program gets 1 / ``_PART`` of the remaining time."""
_BUILDING = 18
"""For each moment, building the MILP takes about as long as judging this many schedules."""
_ALONE_SHARE = 0.4
"""Share of the remaining time in which a bound alone is proved."""
_AGAIN = 2.0
"""A program that was not decided to the end is solved again if it gets this many times the seconds."""
_TRIES = 5
"""How many overfull moments are looked at for one that can be added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutMilp:
    """Solves the cut MILP for one moment, then for two, and adds more.

    Attributes:
        moments: the most moments to add; more is slow and hardly stronger.
        nodes: the most branch-and-bound nodes of each MILP: a limit that does not depend on the machine.
    """

    moments: int = 4
    nodes: int = 2000

    def solve(self, problem: Problem) -> Solution:
        """Bounds and schedules, each schedule repaired."""
        best = Incumbent(problem)
        if not answer_easy_cases(best):
            with best.interruptible():
                self.improve(best, hills=MinCut(plans=0).improve(best))
        return best.solution()

    def bound(self, best: Incumbent) -> None:
        """Raise the bound of a published method, whose own holds in its space only; find no schedules."""
        if not best.done:
            limit = _ALONE_SHARE * best.clock.left_s
            other = Incumbent(replace(best.problem, time_limit=limit, on_progress=None))
            self.improve(other, hills=MinCut(plans=0).improve(other))
            best.raise_bound(other.bound, "cut-milp")

    def improve(self, best: Incumbent, *, hills: Sequence[int] = ()) -> None:
        """Prove bounds, and follow the decisions that come with them.

        Args:
            best: receives both.
            hills: the op of the first moment, and others that are decided together with it; default the
                most crowded one alone.
        """
        if best.done or not best.clock.has_time_to_judge(_BUILDING):
            return
        if not (hills := hills or crowded_ops(best.problem, 1)):
            return
        programs, alone = _Programs(best, self.nodes, tuple(hills[:1])), hills[:1]
        programs.decide(alone)
        pairs = [sorted(hills)] if len(hills) > 1 and programs.in_line(hills) else []
        more = programs.with_one_more(alone) if self.moments else []
        pairs += [more] if more and more not in pairs else []
        for chosen in sorted(pairs, key=programs.decide, reverse=True) or [list(alone)]:
            self._extend(programs, chosen)

    def _extend(self, programs: _Programs, chosen: Sequence[int]) -> None:
        """Add moments while that raises the bound or takes little time; then give the best the rest of it."""
        bound, before = programs.decide(chosen), -1.0
        while len(chosen) <= self.moments and (bound > before or tuple(chosen) in programs.finished):
            chosen = programs.with_one_more(chosen)
            before, bound = max(bound, before), programs.decide(chosen)
        programs.decide(programs.promising, part=1)


def solve_cuts(moments: Sequence[Moment], *, time_limit: float, nodes: int, gap: float = _GAP) -> Decision:
    """Solve the MILP of these moments.

    Args:
        moments: in base order; if schedules may reorder, each must be an ancestor of the next.
        time_limit: seconds.
        nodes: the most branch-and-bound nodes.
        gap: relative to the recomputation, at which to stop.
    """
    if any(moment.room < moment.pinned_size for moment in moments):
        return Decision(recompute=math.inf, keep={})
    model = Moments(moments)
    outcome = Highs(nodes=nodes).solve(model.program, time_limit=time_limit, gap=gap)
    keep = {} if outcome.values is None else model.kept(outcome.values)
    return Decision(recompute=max(outcome.bound, 0.0) * model.unit, keep=keep, finished=outcome.finished)


class _Programs:
    """The MILPs of one problem; moments are ops."""

    def __init__(self, best: Incumbent, nodes: int, promising: tuple[int, ...]) -> None:
        self.best, self.nodes = best, nodes
        self.promising = promising  # the last moments that raised the bound
        self.finished: set[tuple[int, ...]] = set()
        self._given_s: dict[tuple[int, ...], float] = {}
        self._bounds: dict[tuple[int, ...], float] = {}
        self._overfull: dict[tuple[int, ...], list[int]] = {}
        graph, budget, fixed_order = best.problem.graph, best.problem.budget, best.problem.fixed_order
        self._moment = cache(lambda at: moment_at(graph, budget, at, fixed_order=fixed_order))

    def decide(self, chosen: Sequence[int], part: int = _PART) -> float:
        """Solve the MILP of these moments in 1 / ``part`` of the remaining time, and follow the decision.

        It is left out if there is no time, or if they were decided before, in a similar time.

        Returns:
            The bound on the cost of recomputation; 0 if they were never decided.
        """
        best, program = self.best, tuple(chosen)
        limit, before = best.clock.left_s / part, best.bound
        able = bool(program) and not best.done and best.clock.has_time_to_judge(_BUILDING * len(program))
        if not able or program in self.finished or limit <= _AGAIN * self._given_s.get(program, 0.0):
            return self._bounds.get(program, 0.0)
        asked, gap = [self._moment(at) for at in program], best.recompute_gap(_GAP)
        decision = solve_cuts(asked, time_limit=limit, nodes=self.nodes, gap=gap)
        moments = "one moment" if len(program) == 1 else f"{len(program)} moments"
        best.prove(decision.recompute, f"cut-milp with {moments}")
        if decision.finished:
            self.finished.add(program)
        self._given_s[program], self._bounds[program] = limit, decision.recompute
        self.promising = program if best.bound > before else self.promising
        if decision.keep and not best.done:
            literal = follow(best, decision.keep, "cut-milp")
            overfull = _overfull(best.problem, literal, program)
            self._overfull[program] = sorted(overfull, key=lambda at: (-overfull[at], -at))[:_TRIES]
        return decision.recompute

    def with_one_more(self, chosen: Sequence[int]) -> list[int]:
        """These moments, and the one at which their decision is most over the budget; empty if none is."""
        larger = (sorted([*chosen, at]) for at in self._overfull.get(tuple(chosen), ()))
        return next(filter(self.in_line, larger), [])

    def in_line(self, chosen: Sequence[int]) -> bool:
        """Whether it is certain in which order these moments come."""
        return all(self._moment(b).before[a] for a, b in itertools.pairwise(sorted(chosen)))


def _overfull(problem: Problem, sequence: Sequence[int], known: Sequence[int]) -> dict[int, int]:
    """The most bytes before or in the first run of each op that is not ``known``, where over the budget."""
    memory = liveness(problem.graph, sequence).memory
    ops, first = np.unique(sequence, return_index=True)
    order = np.argsort(first)
    ends = first[order]
    peaks = np.maximum.reduceat(memory[: ends[-1] + 1], np.append(0, ends[:-1] + 1))
    sizes = zip(ops[order].tolist(), peaks.tolist(), strict=True)
    return {v: size for v, size in sizes if size > problem.budget and v not in known}

"""The cut MILP: a few moments of the schedule, decided exactly and together.

The program is that of :mod:`checkmate_solvers.moments`; the art is to choose the moments. More of them are
stronger in whole numbers, but not in fractions: between two moments an op runs again or not, and a third one
between them lets a half of it run before and a half after. So the relaxation is solved for many moments at
once, and those at which memory has no price are dropped; which raises the bound, and shifts the prices. A few
moments are left, where memory is short for reasons of their own, and with those the MILP comes far.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from checkmate import Problem, Solution
from checkmate_solvers.backends import Highs
from checkmate_solvers.frontier import Frontier, Mask, crowded_ops, frontier
from checkmate_solvers.moments import Moments
from checkmate_solvers.search import Search

__all__ = ["CutMilp", "CutPlan", "solve_cuts"]

_GAP = 3e-5
"""Relative to the cost of the whole schedule; the objective counts recomputation only."""
_WIDEST_GAP = 0.05
"""Relative to the recomputation."""
_SLACK = 1e-3
"""A moment has no price if its room is worth less than this, relative to the dearest room."""
_MOST_COLUMNS = 20_000
"""Of the first relaxation, about."""
_NEAR = 2
"""How many crowded ops before and after a moment are near it."""
_ROUNDS = 3
"""How often to look near the moments of a price."""
_MANY = 10
"""Of so many moments and more the relaxation, rounded, is a plan worth trying: no MILP is solved for them."""
_SOON = 2
"""How many moments to add to the first one before prices are asked for."""
_TRIES = 5
"""How many moments to look at for one that may be added."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CutPlan:
    """What the MILP says.

    Attributes:
        recompute: lower bound on the cost of everything that runs again; infinite if proved infeasible.
        keep: for each moment, by its op, which tensors are resident there; None if nothing was found.
    """

    recompute: float
    keep: dict[int, Mask] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CutMilp:
    """Solves the cut MILP for one moment, for those of a price, and for one more after the other.

    What is added is the moment at which the last plan is most over the budget, until that helps no more.

    Attributes:
        moments: the most moments to add; more is slow and hardly stronger.
        priced: the most moments to take for their price.
        nodes: the most branch-and-bound nodes of each MILP: a limit that does not depend on the machine.
    """

    moments: int = 4
    priced: int = 10
    nodes: int = 2000

    def __post_init__(self) -> None:
        """Reject no moment at all."""
        if self.priced < 1:
            raise ValueError(f"priced is {self.priced}, must be ≥ 1")

    def solve(self, problem: Problem) -> Solution:
        """Bounds and plans, each plan repaired by eviction."""
        search = Search(problem)
        if not search.start():
            with search.interruptible():
                self.improve(search, fixed_order=problem.fixed_order)
        return search.solution()

    def improve(self, search: Search, *, fixed_order: bool, first: int | None = None) -> None:
        """Offer plans, and prove bounds where they hold.

        Args:
            search: what is known so far.
            fixed_order: take all of the base order as given. The bounds are then proofs only if the
                problem says so too, but the plans may be better.
            first: the op of the first moment; default the most crowded one.
        """
        at = first if first is not None else next(iter(crowded_ops(search.problem, 1)), None)
        if at is None or search.done:
            return
        view = _View(search, fixed_order)
        chosen, more = self._added(view, [at], view.decide([at], self.nodes), _SOON)
        if (priced := view.priced(at, self.priced)) != [at]:
            chosen, more = priced, view.decide(priced, self.nodes)
        self._added(view, chosen, more, self.moments)

    def _added(
        self, view: _View, chosen: list[int], more: int | None, most: int
    ) -> tuple[list[int], int | None]:
        """Add one moment after the other, until that helps no more; what there is then, and what was next."""
        failures = 0
        for _ in range(min(most, self.moments)):
            if more is None or (failures > 1 and not view.search.small):
                break
            before, chosen = view.search.bound, sorted([*chosen, more])
            more = view.decide(chosen, self.nodes)
            failures += view.search.bound == before
        return chosen, more


def solve_cuts(moments: Sequence[Frontier], *, time_limit: float, nodes: int, gap: float = _GAP) -> CutPlan:
    """Solve the MILP of these moments, given in the order in which they come.

    Args:
        moments: in base order; if schedules may reorder, each must be an ancestor of the next.
        time_limit: seconds.
        nodes: the most branch-and-bound nodes.
        gap: relative to the recomputation, at which to stop.
    """
    if any(moment.room < moment.pinned_size for moment in moments):
        return CutPlan(recompute=math.inf, keep=None)
    model = Moments(moments)
    if not model.program.integral.any():  # nothing ran before: nothing to decide
        return CutPlan(recompute=0.0, keep=model.kept(np.zeros(0)))
    outcome = Highs(nodes=nodes).solve(model.program, time_limit=time_limit, gap=gap)
    keep = None if outcome.values is None else model.kept(outcome.values)
    return CutPlan(recompute=max(outcome.bound, 0.0) * model.unit, keep=keep)


class _View:
    """A search that takes the base order as given, or only what is certain of it."""

    def __init__(self, search: Search, fixed_order: bool) -> None:
        self.search, self.fixed_order = search, fixed_order
        self._seen: dict[int, Frontier] = {}

    def decide(self, chosen: Sequence[int], nodes: int) -> int | None:
        """Solve the MILP of these moments; returns one more moment, at which its plan does not fit."""
        search = self.search
        if search.done:
            return None
        moments = [self._moment(at) for at in chosen]
        share = search.bound / max(search.bound - search.base, _GAP * search.bound, 1e-300)
        gap = min(_GAP * share, _WIDEST_GAP)
        plan = solve_cuts(moments, time_limit=search.left_s / 4, nodes=nodes, gap=gap)
        self._prove(plan.recompute, len(moments))
        if plan.keep is None:
            return None
        literal, known = search.decode(plan.keep, "cut-milp"), list(chosen)
        for _ in range(_TRIES):
            more = search.overflow(literal, known)
            if more is None or self._in_line([*chosen, more]):
                return more
            known.append(more)
        return None

    def priced(self, first: int, most: int) -> list[int]:
        """Moments at which memory has a price: first of those all over the order, then of those nearby."""
        problem = self.search.problem
        if self.search.done:
            return [first]
        size = (problem.graph.n_ops + problem.graph.n_tensors) // 2
        chosen, best = self._dear([first, *crowded_ops(problem, _MOST_COLUMNS // size + 1)], most)
        crowded = crowded_ops(problem)
        for _ in range(_ROUNDS):
            near = {crowded.index(at) + step for at in chosen for step in range(-_NEAR, _NEAR + 1)}
            nearby = [crowded[place] for place in sorted(near) if 0 <= place < len(crowded)]
            dear, value = self._dear([*chosen, *nearby], most)
            if value <= best or self.search.done:
                break
            chosen, best = dear, value
        return chosen

    def _dear(self, candidates: Sequence[int], most: int) -> tuple[list[int], float]:
        """Those of the candidates with a price, and the bound of their relaxation; the first ones rather."""
        chosen: list[int] = []
        for at in dict.fromkeys(candidates):
            if self._in_line([*chosen, at]):
                chosen.append(at)
        chosen.sort()
        best, worth = self._relaxed(chosen)
        if not math.isfinite(best):
            return list(candidates[:1]), best
        while len(chosen) > 1 and not self.search.done:
            least = max(_SLACK * max(worth), sorted(worth)[-min(most, len(worth))])
            fewer = [at for at, value in zip(chosen, worth, strict=True) if value >= least and value > 0]
            if not fewer or len(fewer) == len(chosen):
                break
            chosen = fewer
            best, worth = self._relaxed(chosen)
        for _, at in sorted(zip(worth, chosen, strict=True)):
            if len(chosen) > 1 and not self.search.done:
                fewer = [other for other in chosen if other != at]
                value, _ = self._relaxed(fewer)
                if value >= best:
                    best, chosen = value, fewer
        return chosen, best

    def _relaxed(self, chosen: Sequence[int]) -> tuple[float, list[float]]:
        """Bound of the linear relaxation, and what the room at each moment is worth in it; offers a plan."""
        model = Moments([self._moment(at) for at in chosen])
        if not model.program.integral.any():
            return 0.0, [0.0 for _ in chosen]
        outcome = Highs().solve(model.program.relaxed(), time_limit=self.search.left_s / 4, gap=0.0)
        self._prove(outcome.bound * model.unit, len(chosen))
        if outcome.prices is None or outcome.values is None:
            return outcome.bound, [0.0 for _ in chosen]
        if len(chosen) > _MANY:
            self.search.decode(model.kept(outcome.values), "cut-milp, rounded")
        room = np.maximum(model.program.upper[model.memory], 1.0)
        return outcome.bound, (-outcome.prices[model.memory] * room).tolist()

    def _prove(self, recompute: float, count: int) -> None:
        if self.fixed_order <= self.search.problem.fixed_order:
            self.search.prove(recompute, f"cut-milp with {count} moment{'s' * (count > 1)}")

    def _moment(self, at: int) -> Frontier:
        if at not in self._seen:
            problem = self.search.problem
            self._seen[at] = frontier(problem.graph, problem.budget, at, fixed_order=self.fixed_order)
        return self._seen[at]

    def _in_line(self, chosen: Sequence[int]) -> bool:
        """Whether it is certain in which order these moments come."""
        return all(self._moment(b).before[a] for a, b in itertools.pairwise(sorted(chosen)))

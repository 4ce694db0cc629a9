"""The cut MILP: a few moments of the schedule, decided exactly and together.

:mod:`checkmate_solvers.moments.program` has the program; the art is to choose the moments. More of them are
stronger in whole numbers, but not in fractions: between two moments an op runs again or not, and a third one
between them lets a half of it run before and a half after. So the relaxation is solved for many moments at
once, and those at which memory has no price are dropped; which raises the bound, and shifts the prices. A few
moments are left, where memory is short for reasons of their own, and with those the MILP comes far.

Fractions don't know that a tensor fits as a whole or not at all, which can make a moment strong that has next
to no price. So before that, the MILP is solved for each moment near the first one, and what is added to the
best of them is the best of a few at which its plan does not fit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from checkmate import Problem, Schedule, Solution, simulate
from checkmate_solvers.engines import Highs
from checkmate_solvers.moments.moment import Mask, Moment, crowded_ops, moment_at
from checkmate_solvers.moments.program import Moments
from checkmate_solvers.search.incumbent import Search

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
_AROUND = 5
"""How many crowded ops before and after the first to try in its place; none if it is large."""
_OVER = 3
"""How many moments to try for each one added so, beside the worst; fewer if the graph is large."""
_PART = 4
"""A MILP that decides may take one in so many parts of the time that is left."""
_TRIAL_PART = 24
"""The same for one that is only a trial; as for any other if few are tried."""
_BETTER = 1 + 1e-5
"""Factor by which a bound has to be better to count; less may be due to the gap at which the MILP stops."""
_ALIKE = 1e-3
"""Relative difference of bounds up to which moments next to each other are alike."""
_BUILDING = 18
"""For each moment, writing the MILP down takes about as long as judging this many schedules."""
_TRIES = 5
"""How many moments to look at for one that may be added."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CutPlan:
    """What the MILP says.

    Attributes:
        recompute: lower bound on the cost of everything that runs again; infinite if proved infeasible.
        keep: for each moment, by its op, which tensors are resident there; None if nothing was found.
        finished: whether the engine came to its end: more time would not help.
    """

    recompute: float
    keep: dict[int, Mask] | None
    finished: bool = True


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
        if search.done or not search.has_time_to_judge(_BUILDING):
            return
        at = first if first is not None else next(iter(crowded_ops(search.problem, 1)), None)
        if at is None:
            return
        view = _View(search, fixed_order, self.nodes)
        grown = [at] if view.large else self._grown(view, at)
        if grown == [at]:
            self._added(view, grown, _SOON)
        chosen = priced if (priced := view.priced(at, self.priced)) != [at] else grown
        self._added(view, chosen, self.moments)
        if not view.trial(grown).finished:
            view.decide(grown, part=1)

    def _grown(self, view: _View, at: int) -> list[int]:
        """The strongest moment near that one and up to two more, each the best of a few."""
        chosen, best = [at], view.plan([at]).recompute
        for other in view.around(at):
            if (value := view.trial([other]).recompute) > best * _BETTER:
                chosen, best = [other], value
        for _ in range(min(_SOON, self.moments)):
            trials = [sorted([*chosen, more]) for more in view.follow(chosen)]
            values = [view.trial(trial).recompute for trial in trials]
            if not values:
                return chosen
            strongest = trials[values.index(max(values))]
            if max(values) <= best * _BETTER:
                view.follow(strongest)
                break
            chosen, best = strongest, max(values)
        view.follow(chosen)
        return chosen

    def _added(self, view: _View, chosen: list[int], most: int) -> None:
        """Decide these moments, and add one more after the other until that helps no more."""
        more, failures = view.decide(chosen), 0
        for _ in range(min(most, self.moments)):
            if more is None or (failures > 1 and not view.search.small):
                break
            before, chosen = view.search.bound, sorted([*chosen, more])
            more = view.decide(chosen)
            failures += view.search.bound == before


def solve_cuts(moments: Sequence[Moment], *, time_limit: float, nodes: int, gap: float = _GAP) -> CutPlan:
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
    return CutPlan(recompute=max(outcome.bound, 0.0) * model.unit, keep=keep, finished=outcome.finished)


_UNSOLVED = CutPlan(recompute=0.0, keep=None)


class _View:
    """A search that takes the base order as given, or only what is certain of it."""

    def __init__(self, search: Search, fixed_order: bool, nodes: int) -> None:
        self.search, self.fixed_order, self.nodes = search, fixed_order, nodes
        self._seen: dict[int, Moment] = {}
        self._plans: dict[tuple[int, ...], CutPlan] = {}
        graph = search.problem.graph
        self._size = (graph.n_ops + graph.n_tensors) // 2
        self._few = max(1, _MOST_COLUMNS // self._size // 4)

    @property
    def large(self) -> bool:
        """Whether the graph is too large for trials."""
        return self._few == 1

    def trial(self, chosen: Sequence[int]) -> CutPlan:
        """Solve the MILP of these moments, once, in a smaller part of the time."""
        return self.plan(chosen, min(_TRIAL_PART, _PART * self._few))

    def plan(self, chosen: Sequence[int], part: int = _PART) -> CutPlan:
        """Solve the MILP of these moments, once, in the time that is left divided by ``part``."""
        search, key = self.search, tuple(chosen)
        if key in self._plans:
            return self._plans[key]
        if search.done or not search.has_time_to_judge(_BUILDING * len(chosen)):
            return _UNSOLVED
        moments = [self._moment(at) for at in chosen]
        again = max(search.bound - search.base, _GAP * search.bound, 1e-300)
        gap = min(_GAP * search.bound / again, _WIDEST_GAP)
        plan = solve_cuts(moments, time_limit=search.left_s / part, nodes=self.nodes, gap=gap)
        self._prove(plan.recompute, len(moments))
        self._plans[key] = plan
        return plan

    def decide(self, chosen: Sequence[int], part: int = _PART) -> int | None:
        """Solve that MILP, again if it was cut short; returns one more, where its plan does not fit."""
        if not self._plans.get(tuple(chosen), _UNSOLVED).finished:
            del self._plans[tuple(chosen)]
        plan = self.plan(chosen, part)
        if plan.keep is None or self.search.done:
            return None
        literal, known = self.search.decode(plan.keep, "cut-milp"), list(chosen)
        for _ in range(_TRIES):
            more = self.search.overflow(literal, known)
            if more is None or self._in_line([*chosen, more]):
                return more
            known.append(more)
        return None

    def follow(self, chosen: Sequence[int]) -> list[int]:
        """Offer the plan of these moments; where it does not fit: the worst moment, and the first ones."""
        plan = self.trial(chosen)
        if plan.keep is None or self.search.done:
            return []
        literal = self.search.decode(plan.keep, "cut-milp")
        sizes = _overflows(self.search.problem, literal, chosen)
        worst = sorted(sizes, key=lambda at: (-sizes[at], -at))
        some: list[int] = []
        for most, order in ((1, worst), (1 + min(_OVER, self._few), sorted(sizes))):
            for at in order:
                if len(some) < most and self._in_line([*chosen, at]) and not self._is_like(at, some):
                    some.append(at)
        return some

    def around(self, at: int) -> list[int]:
        """Crowded ops before and after this one."""
        crowded = crowded_ops(self.search.problem)
        place, most = crowded.index(at), min(_AROUND, self._few - 1)
        return [*crowded[max(place - most, 0) : place], *crowded[place + 1 : place + 1 + most]]

    def _is_like(self, at: int, others: Sequence[int]) -> bool:
        """Whether this moment says no more than one of the others, as far as a MILP of its own tells."""
        values = [self.trial([near]).recompute for near in (at - 1, at + 1) if near in others]
        alone = self.trial([at]).recompute if values else 0.0
        return at in others or any(abs(value - alone) <= _ALIKE * alone for value in values)

    def priced(self, first: int, most: int) -> list[int]:
        """Moments at which memory has a price: first of those all over the order, then of those nearby."""
        problem = self.search.problem
        if self.search.done:
            return [first]
        chosen, best = self._dear([first, *crowded_ops(problem, _MOST_COLUMNS // self._size + 1)], most)
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
        if not self.search.has_time_to_judge(_BUILDING * len(chosen)):
            return 0.0, [0.0 for _ in chosen]
        model = Moments([self._moment(at) for at in chosen])
        if not model.program.integral.any():
            return 0.0, [0.0 for _ in chosen]
        outcome = Highs().solve(model.program.relaxed(), time_limit=self.search.left_s / _PART, gap=0.0)
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

    def _moment(self, at: int) -> Moment:
        if at not in self._seen:
            problem = self.search.problem
            self._seen[at] = moment_at(problem.graph, problem.budget, at, fixed_order=self.fixed_order)
        return self._seen[at]

    def _in_line(self, chosen: Sequence[int]) -> bool:
        """Whether it is certain in which order these moments come."""
        return all(self._moment(b).before[a] for a, b in itertools.pairwise(sorted(chosen)))


def _overflows(problem: Problem, sequence: Sequence[int], known: Sequence[int]) -> dict[int, int]:
    """The most bytes before or in the first run of each op, but ``known`` ones, if over budget."""
    graph = problem.graph
    timeline = simulate(graph, Schedule.from_sequence(graph, sequence))
    memory = timeline.memory[timeline.schedule.codes >= 0].tolist()
    first = {v: i for i, v in reversed(list(enumerate(sequence)))}
    sizes: dict[int, int] = {}
    upcoming: int | None = None
    for i in range(len(sequence) - 1, -1, -1):
        if first[sequence[i]] == i:
            upcoming = sequence[i]
        if upcoming is not None and upcoming not in known and memory[i] > problem.budget:
            sizes[upcoming] = max(sizes.get(upcoming, 0), memory[i])
    return sizes

"""The cut MILP: a few moments of the schedule, decided exactly and together.

:mod:`checkmate_solvers.moments.program` has the program; the art is to choose the moments. More of them are
stronger in whole numbers, but not in fractions: between two moments an op runs again or not, and a third one
between them lets a half of it run before and a half after. So the relaxation is solved for many moments at
once, and those at which memory has no price are dropped, which raises the bound, and shifts the prices. A few
moments are left, where memory is short for reasons of their own, and with those the MILP comes far. Then the
moment is added at which the last decision is most over the budget, until that helps no more.
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
from checkmate_solvers.search import Incumbent, answer_easy_cases, follow, is_small

__all__ = ["CutDecision", "CutMilp", "solve_cuts"]

_GAP = 3e-5
"""Relative to the cost of the whole schedule; the objective counts recomputation only."""
_SLACK = 1e-3
"""A moment has no price if its room is worth less than this, relative to the room of the highest price."""
_MOST_COLUMNS = 20_000
"""Columns of the first relaxation, about."""
_MANY = 10
"""From this many moments on, the rounded LP is followed: no MILP is solved for them."""
_PART = 4
"""A program gets 1 / ``_PART`` of the remaining time."""
_SOON = 2
"""How many moments are added to the first one before prices are computed."""
_BUILDING = 18
"""For each moment, building the MILP takes about as long as judging this many schedules."""
_TRIES = 5
"""How many overfull moments are looked at for one that can be added."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CutDecision:
    """The result of one MILP.

    Attributes:
        recompute: lower bound on the cost of all recomputation; infinite if proved infeasible.
        keep: for each moment, by its op, which tensors are resident there; None if nothing was found.
        finished: whether the engine came to its end: more time would not help.
    """

    recompute: float
    keep: dict[int, Mask] | None
    finished: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CutMilp:
    """Solves the cut MILP for one moment, then for the moments of a price, and adds more to both.

    Attributes:
        moments: the most moments to add; more is slow and hardly stronger.
        priced: the most moments to take for their price.
        nodes: the most branch-and-bound nodes of each MILP: a limit that does not depend on the machine.
    """

    moments: int = 4
    priced: int = 10
    nodes: int = 2000

    def __post_init__(self) -> None:
        """Reject settings without any moment."""
        if self.priced < 1:
            raise ValueError(f"priced is {self.priced}, must be ≥ 1")

    def solve(self, problem: Problem) -> Solution:
        """Bounds and schedules, each schedule repaired."""
        best = Incumbent(problem)
        if not answer_easy_cases(best):
            with best.interruptible():
                self.improve(best)
        return best.solution()

    def improve(self, best: Incumbent, *, hills: Sequence[int] = ()) -> None:
        """Prove bounds, and follow the decisions that come with them.

        Args:
            best: receives both.
            hills: the op of the first moment, and others that are decided together with it; default the
                most crowded one alone.
        """
        if best.done or not best.clock.has_time_to_judge(_BUILDING):
            return
        hills = hills or crowded_ops(best.problem, 1)
        if not hills:
            return
        programs = _Programs(best, self.nodes)
        self._decide(programs, hills[:1], min(_SOON, self.moments))
        together = programs.in_line(hills)
        if len(together) > 1:
            self._decide(programs, together, self.moments)
        self._decide(programs, programs.priced(hills[0], self.priced), self.moments)
        programs.finish(together)

    def _decide(self, programs: _Programs, chosen: Sequence[int], most: int) -> None:
        """Decide these moments, and add one after the other until that helps no more."""
        best, failures = programs.best, 0
        more = programs.decide(chosen)
        for _ in range(most):
            if more is None or (failures > 1 and not is_small(best)):
                break
            before, chosen = best.bound, sorted([*chosen, more])
            more = programs.decide(chosen)
            failures += best.bound == before


def solve_cuts(moments: Sequence[Moment], *, time_limit: float, nodes: int, gap: float = _GAP) -> CutDecision:
    """Solve the MILP of these moments.

    Args:
        moments: in base order; if schedules may reorder, each must be an ancestor of the next.
        time_limit: seconds.
        nodes: the most branch-and-bound nodes.
        gap: relative to the recomputation, at which to stop.
    """
    if any(moment.room < moment.pinned_size for moment in moments):
        return CutDecision(recompute=math.inf, keep=None)
    model = Moments(moments)
    if not model.program.integral.any():  # nothing ran before: nothing to decide
        return CutDecision(recompute=0.0, keep=model.kept(np.zeros(0)))
    outcome = Highs(nodes=nodes).solve(model.program, time_limit=time_limit, gap=gap)
    keep = None if outcome.values is None else model.kept(outcome.values)
    return CutDecision(recompute=max(outcome.bound, 0.0) * model.unit, keep=keep, finished=outcome.finished)


class _Programs:
    """The MILPs and relaxations of one problem; moments are ops, each decision is kept."""

    def __init__(self, best: Incumbent, nodes: int) -> None:
        self.best, self.nodes = best, nodes
        self._seen: dict[int, Moment] = {}
        self._decided: dict[tuple[int, ...], CutDecision] = {}
        graph = best.problem.graph
        self._columns = max((graph.n_ops + graph.n_tensors) // 2, 1)

    def decide(self, chosen: Sequence[int], part: int = _PART) -> int | None:
        """Solve the MILP of these moments in 1 / ``part`` of the remaining time, and follow the decision.

        Returns:
            One more moment, at which the decision is over the budget; None if there is none.
        """
        best = self.best
        decision = self._decided.get(tuple(chosen))
        if decision is None or not decision.finished:
            if best.done or not best.clock.has_time_to_judge(_BUILDING * len(chosen)):
                return None
            decision = self._decided[tuple(chosen)] = solve_cuts(
                [self._moment(at) for at in chosen],
                time_limit=best.clock.left_s / part,
                nodes=self.nodes,
                gap=best.recompute_gap(_GAP),
            )
            self._prove(decision.recompute, len(chosen))
        if decision.keep is None or best.done:
            return None
        literal = follow(best, decision.keep, "cut-milp")
        overfull = _overfull(best.problem, literal, chosen)
        likely = sorted(overfull, key=lambda at: (-overfull[at], -at))[:_TRIES]
        return next((at for at in likely if self._in_line([*chosen, at])), None)

    def finish(self, chosen: Sequence[int]) -> None:
        """Solve the MILP of these moments in all of the remaining time, if it was cut short."""
        decision = self._decided.get(tuple(chosen))
        if decision is None or not decision.finished:
            self.decide(chosen, part=1)

    def priced(self, first: int, most: int) -> list[int]:
        """Drop moments whose memory row has (almost) no shadow price; return the rest, at most ``most``."""
        if self.best.done:
            return [first]
        spread = crowded_ops(self.best.problem, _MOST_COLUMNS // self._columns + 1)
        chosen = self.in_line([first, *spread])
        bound, worth = self._relaxed(chosen)
        if not math.isfinite(bound):
            return [first]
        while len(chosen) > 1 and not self.best.done:
            least = max(_SLACK * max(worth), sorted(worth)[-min(most, len(worth))])
            fewer = [at for at, value in zip(chosen, worth, strict=True) if value >= least and value > 0]
            if not fewer or len(fewer) == len(chosen):
                break
            chosen = fewer
            bound, worth = self._relaxed(chosen)
        return self._without_needless([at for _, at in sorted(zip(worth, chosen, strict=True))], bound)

    def _without_needless(self, cheapest_first: Sequence[int], bound: float) -> list[int]:
        """Drop moments one by one where that does not lower the bound of the relaxation."""
        chosen = sorted(cheapest_first)
        for at in cheapest_first:
            if len(chosen) > 1 and not self.best.done:
                fewer = [other for other in chosen if other != at]
                value, _ = self._relaxed(fewer)
                if value >= bound:
                    bound, chosen = value, fewer
        return chosen

    def _relaxed(self, chosen: Sequence[int]) -> tuple[float, list[float]]:
        """Solve the linear relaxation; return its bound and the worth of the room at each moment."""
        worthless = [0.0 for _ in chosen]
        if not self.best.clock.has_time_to_judge(_BUILDING * len(chosen)):
            return 0.0, worthless
        model = Moments([self._moment(at) for at in chosen])
        if not model.program.integral.any():
            return 0.0, worthless
        outcome = Highs().solve(model.program.relaxed(), time_limit=self.best.clock.left_s / _PART, gap=0.0)
        self._prove(outcome.bound * model.unit, len(chosen))
        if outcome.prices is None or outcome.values is None:
            return outcome.bound, worthless
        if len(chosen) > _MANY:
            follow(self.best, model.kept(outcome.values), "cut-milp, rounded")
        room = np.maximum(model.program.upper[model.memory], 1.0)
        return outcome.bound, (-outcome.prices[model.memory] * room).tolist()

    def _prove(self, recompute: float, count: int) -> None:
        self.best.prove(recompute, f"cut-milp with {count} moment{'s' * (count > 1)}")

    def _moment(self, at: int) -> Moment:
        if at not in self._seen:
            problem = self.best.problem
            self._seen[at] = moment_at(problem.graph, problem.budget, at, fixed_order=problem.fixed_order)
        return self._seen[at]

    def in_line(self, candidates: Sequence[int]) -> list[int]:
        """Of the candidates, the first ones that come in a certain order."""
        chosen: list[int] = []
        for at in dict.fromkeys(candidates):
            if self._in_line([*chosen, at]):
                chosen.append(at)
        return sorted(chosen)

    def _in_line(self, chosen: Sequence[int]) -> bool:
        """Whether it is certain in which order these moments come."""
        return all(self._moment(b).before[a] for a, b in itertools.pairwise(sorted(chosen)))


def _overfull(problem: Problem, sequence: Sequence[int], known: Sequence[int]) -> dict[int, int]:
    """The most bytes before or in the first run of each op that is not ``known``, where over the budget."""
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

"""The incumbent of one solve: the cheapest schedule and the highest bound so far, and their origins."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

from checkmate import Problem, Progress, Schedule, Solution, Timeline, simulate
from checkmate.analysis import needed_ops
from checkmate_solvers.machine.driver import Driver
from checkmate_solvers.search.clock import Clock

__all__ = ["Incumbent"]

_GOOD_ENOUGH = 5e-4
"""The search stops at this relative gap."""
_WIDEST_GAP = 0.05
"""The widest gap, relative to the recomputation, at which a MILP may stop."""


class Incumbent:
    """The best schedule and bound of one problem so far; each improvement is reported.

    Attributes:
        problem: the question.
        clock: its time limits.
        base: cost of running every needed op once.
        cost: cost of the cheapest schedule so far; infinite if there is none.
        bound: proved lower bound on the cost; infinite if the problem is proved infeasible.
        poll: called at each look at :attr:`done`, for news from another process.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.clock = Clock(problem)
        costs = problem.graph.costs[needed_ops(problem.graph)]
        self.base = self.bound = math.fsum(costs)
        self.cost = math.inf
        self.poll: Callable[[], object] = lambda: None
        whole = all(float(c).is_integer() for c in costs)
        self._step = math.gcd(*(int(c) for c in costs)) if whole and self.base < 2**52 else 0
        self._best: Timeline | None = None
        self._lowest: Timeline | None = None
        self._seeds: dict[str, tuple[float, list[int]]] = {}
        self._origin = {"bound": "every op once"}

    @cached_property
    def driver(self) -> Driver:
        """Repairs sequences of this problem."""
        problem = self.problem
        return Driver(problem.graph, fixed_order=problem.fixed_order, seed=problem.seed)

    @property
    def found_by(self) -> str:
        """The step that found the cheapest schedule so far; empty if there is none."""
        return self._origin.get("schedule", "")

    @property
    def sequence(self) -> list[int] | None:
        """The ops of the cheapest schedule so far, with repeats."""
        return None if self._best is None else self._best.schedule.sequence.tolist()

    @property
    def seeds(self) -> list[tuple[float, str, list[int]]]:
        """Cost, step and ops of the best sequence within the budget of each step, cheapest first."""
        return sorted((cost, origin, sequence) for origin, (cost, sequence) in self._seeds.items())

    @property
    def gap(self) -> float:
        """(cost − bound) / cost; infinite while there is no schedule."""
        if math.isinf(self.cost):
            return math.inf
        return (self.cost - self.bound) / self.cost if self.cost > 0 else 0.0

    def recompute_gap(self, gap: float) -> float:
        """Convert a gap relative to the whole cost to one relative to the recomputation, of at most 5 %."""
        again = self.bound - self.base
        return min(gap * self.bound / again, _WIDEST_GAP) if again > 0 else _WIDEST_GAP

    @property
    def done(self) -> bool:
        """Whether the search can stop: the gap is small enough, nothing fits, or the time is over."""
        self.poll()
        return self.gap <= _GOOD_ENOUGH or math.isinf(self.bound) or self.clock.left_s <= 0

    def keep_if_better(self, found: Timeline | Sequence[int], origin: str, *, seed: bool = True) -> None:
        """Judge the schedule that a step found; keep it if it answers the problem and is the cheapest so far.

        ``found`` is its ops with repeats, or its timeline. With ``seed``, local search may start from it.
        """
        graph = self.problem.graph
        if isinstance(found, Timeline):
            timeline = found
        else:
            timeline = simulate(graph, Schedule.from_sequence(graph, found))
        if self.problem.fixed_order and not timeline.schedule.keeps_base_order:
            return
        if timeline.peak > self.problem.budget:
            if self._lowest is None or timeline.peak < self._lowest.peak:
                self._lowest = timeline
            return
        if seed and timeline.cost < self._seeds.get(origin, (math.inf, []))[0]:
            self._seeds[origin] = timeline.cost, timeline.schedule.sequence.tolist()
        if timeline.cost < self.cost:
            self.cost, self._best = timeline.cost, timeline
            self.clock.is_patient = False
            self._origin["schedule"] = origin
            self.note(origin)

    def raise_recompute_bound(self, recompute: float, origin: str) -> None:
        """Keep a proved bound on the cost of all recomputation; infinite if no schedule fits."""
        bound = self.base + recompute
        if self._step and math.isfinite(bound):
            bound = float(self._step * math.ceil(bound / self._step))
        self.raise_bound(bound, origin)

    def raise_bound(self, bound: float, origin: str) -> None:
        """Keep a proved bound on the cost of every schedule, if it is the highest so far."""
        if bound > self.bound:
            self.bound = bound
            self._origin["bound"] = origin
            self.note(origin)

    def note(self, step: str) -> None:
        """Report progress: the cost and the bound that are known, and what the solver does."""
        if self.problem.on_progress is not None:
            incumbent = self.cost if self._best is not None else None
            elapsed_s = time.monotonic() - self.clock.started
            self.problem.on_progress(Progress(incumbent, min(self.bound, self.cost), elapsed_s, step))

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Ctrl-C ends the block; it is re-raised only if there is no schedule yet."""
        try:
            yield
        except KeyboardInterrupt:
            if self._best is None:
                raise
            self._origin["interrupted"] = "Ctrl-C"

    def solution(self) -> Solution:
        """The answer to the problem, from what is known now."""
        if self._best is not None:
            return Solution.found(self.problem, self._best, bound=self.bound, origin=self._origin)
        if math.isinf(self.bound):
            return Solution.infeasible(self.problem)
        lowest = self._lowest.schedule if self._lowest is not None else None
        return Solution.unknown(self.problem, bound=self.bound, lowest=lowest)

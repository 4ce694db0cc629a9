"""Local search in cycles: where each starts, how hot it runs, and when the search stops.

A *cycle* loads a sequence, and runs rounds (:mod:`checkmate_solvers.machine.rounds`) while the temperature
falls. Cycles start from the best sequence so far, from seeds of other solvers, or from scratch. A start from
scratch tightens the budget in steps, from the peak without recomputation down to the problem's. Most cycles
from the best sequence first search with more room, and then tighten in the same way: strategic oscillation
(Glover and Hao, "The case for strategic oscillation", Annals of Operations Research 183, 2011). Half of the
work goes into a few long cycles. All limits are counted in rounds; the clock only caps them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from checkmate import Problem, Solution, keep_all_peak
from checkmate.analysis import needed_ops
from checkmate.heuristics import BestHeuristic
from checkmate_solvers.machine.arrays import Ints
from checkmate_solvers.machine.driver import Driver
from checkmate_solvers.search import (
    Incumbent,
    answer_easy_cases,
    await_machine_code,
    has_machine_code,
    offer,
)

__all__ = ["LocalSearch"]

_HEATS = (0.3, 0.1, 0.3, 0.03)
"""Temperatures at which successive cycles start, relative to the mean cost of repeated runs."""
_LONG, _FIRST_LONG, _LONG_SHARE, _LONG_HEAT = 24, 4, 0.6, 3.0
"""A long cycle has this many times the rounds of others; half of all rounds are in long ones. The first one
comes after a few others. It takes this share of the remaining time at most, and starts hotter, to get from a
good schedule to one that keeps other tensors altogether."""
_COOLED = 0.02
"""The temperature at the end of a cycle, relative to that at its start."""
_ROOMS = (0.1, 0.3, 0.2, 0.0, 0.5)
"""How much the budget is exceeded at first in successive cycles from the best sequence, relative to it."""
_RELAXED_HEAT, _RELAXED_COOLED = 0.3, 0.1
"""Temperatures while it is exceeded: at the start as above, at the end relative to that."""
_TIGHTENINGS, _RETURNS = 12, 4
"""Steps from the peak without recomputation to the budget; and from an exceeded budget."""
_FAILURES = 12
"""How many steps may fail on the way down from the peak without recomputation."""
_STARTING = 5
"""The search starts in about the time that judging this many schedules takes."""
_ROUNDS_PER_OP = 50
"""Limit of the rounds of a cycle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSearch:
    """Ruin and recreate over sequences; see :mod:`checkmate_solvers.machine.rounds`.

    Attributes:
        rounds: of a cycle; fewer in graphs of less than a hundred ops.
        patience: cycles without an improvement after which the search stops; a long cycle counts as the
            number of others that would take its rounds.
        samples: how many ways to free bytes are compared, at most.
        fresh: of this many cycles, one starts from scratch.
    """

    rounds: int = 5000
    patience: int = 96
    samples: int = 4
    fresh: int = 7

    def solve(self, problem: Problem) -> Solution:
        """Search from scratch; proves only the easy cases.

        It waits for machine code that is being compiled. Where none becomes available, the best built-in
        heuristic answers.
        """
        best = Incumbent(problem)
        if not answer_easy_cases(best):
            with best.interruptible():
                if not await_machine_code(best):
                    found = BestHeuristic().solve(problem).schedule
                    if found is not None:
                        offer(best, found.sequence.tolist(), "heuristics")
                self.improve(best)
        return best.solution()

    def improve(self, best: Incumbent, *, cycles: int | None = None) -> None:
        """Look for cheaper sequences; none are found while there is no machine code.

        Args:
            best: receives the sequences; its schedule and its seeds are where the first cycles start.
            cycles: the most cycles; None = limited by patience alone.
        """
        able = best.clock.has_time_to_judge(_STARTING) and has_machine_code(best, even_if_small=True)
        if not best.done and able:
            _Cycles(self, best).run(cycles)


class _Cycles:
    """One call of ``improve``."""

    def __init__(self, settings: LocalSearch, best: Incumbent) -> None:
        self.settings, self.incumbent = settings, best
        problem, graph = best.problem, best.problem.graph
        self.seeds = [] if best.sequence is None else [best.sequence, *best.seeds]
        self.budget = problem.budget - graph.base_size
        self.driver = Driver(graph, fixed_order=problem.fixed_order, seed=problem.seed)
        self.best: Ints = np.zeros(0, dtype=np.int64)
        self.cost = math.inf
        self.length = min(settings.rounds, _ROUNDS_PER_OP * graph.n_ops)

    def run(self, cycles: int | None) -> None:
        """Cycle until the patience or the time is used up."""
        idle = turn = 0
        patience, most = self.settings.patience, math.inf if cycles is None else cycles
        while not self.incumbent.done and idle < patience and turn < most:
            before, heat, rounds = self.cost, _HEATS[turn % len(_HEATS)], self.length
            if turn % (_LONG + 1) == _FIRST_LONG:
                heat, rounds = _LONG_HEAT, self._in_time(_LONG * rounds)
            if self._begin(turn):
                self._keep()
                self._anneal(rounds, heat, _COOLED, self.budget)
                self._keep()
            turn += 1
            idle = 0 if self.cost < before else idle + max(rounds // self.length, 1)

    def _in_time(self, rounds: int) -> int:
        """At most these rounds, fewer if the time is short: a cycle that ends while it is hot is lost."""
        left_s = _LONG_SHARE * self.incumbent.clock.left_s
        return max(min(rounds, int(left_s / max(self.driver.round_s, 1e-9))), 1)

    def _begin(self, turn: int) -> bool:
        """Load the sequence that a cycle starts from; False if none is within the budget."""
        if turn < len(self.seeds):
            return self._load(self.seeds[turn])
        if (turn - len(self.seeds)) % self.settings.fresh == 0 or not len(self.best):
            return self._start_from_scratch()
        more = _ROOMS[turn % len(_ROOMS)]
        return self._oscillate(more) if more else self._load(self.best)

    def _load(self, sequence: Sequence[int] | Ints) -> bool:
        """Load a sequence that fits, without the computes that it does not need."""
        self.driver.load(sequence)
        return self.driver.repair(self.budget, 1)

    def _start_from_scratch(self) -> bool:
        graph = self.incumbent.problem.graph
        self.driver.load(np.flatnonzero(needed_ops(graph)))
        return self._tighten(max(keep_all_peak(graph) - graph.base_size, 1), _TIGHTENINGS, _FAILURES)

    def _oscillate(self, more: float) -> bool:
        """Search around the best sequence with more room, and take the room away again."""
        room = int(self.budget * (1 + more))
        self._load(self.best)
        self._anneal(max(1, self.length // 4), _RELAXED_HEAT, _RELAXED_COOLED, room)
        return self._tighten(room, _RETURNS, 0) or self._load(self.best)

    def _tighten(self, reached: int, steps: int, failures: int) -> bool:
        """Tighten the budget from ``reached`` bytes in steps, smaller ones after each of a few failures."""
        whole = step = (max(self.budget, 1) / reached) ** (1 / steps) if reached > self.budget else 1.0
        while reached > self.budget:
            goal = max(self.budget, min(int(reached * step), reached - 1))
            if self._repair(goal):
                reached, step = goal, max(whole, step**2)
            elif failures == 0 or self.incumbent.clock.left_s <= 0:
                return False
            else:
                failures, step = failures - 1, math.sqrt(step)
        return True

    def _repair(self, budget: int) -> bool:
        """Bring the current sequence within a budget; if that fails, go back to the best one."""
        start = self.driver.best
        fits = self.driver.repair(budget, 5 * len(start) + 300, deadline=self.incumbent.clock.deadline)
        if not fits:
            self.driver.load(start)
        return fits

    def _anneal(self, rounds: int, heat: float, cooled: float, budget: int) -> None:
        self.driver.anneal(
            budget,
            rounds,
            heat * self.driver.repeat_cost,
            cooled=cooled,
            samples=self.settings.samples,
            deadline=self.incumbent.clock.deadline,
            on_better=self._keep if budget == self.budget else lambda: None,
        )

    def _keep(self) -> None:
        """Offer the driver's best sequence if it is new; it is within the budget."""
        if self.driver.cost < self.cost:
            self.best, self.cost = self.driver.best, self.driver.cost
            self.incumbent.keep_if_better(self.best.tolist(), "local search")

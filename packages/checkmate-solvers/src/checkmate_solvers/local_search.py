"""Local search in cycles: where each starts, how hot it runs, and when the search stops.

A *cycle* loads a sequence, and runs rounds (:mod:`checkmate_solvers.machine.rounds`) while the temperature
falls. Cycles start from the sequences of other solvers, as soon as there are some. Without a good schedule,
short cycles from scratch are next, until several in a row find nothing better among themselves: their results
differ by more than a longer search gains. A cycle *from scratch* tightens the budget from the peak without
recomputation down to the problem's. Some of them first keep the first runs of all ops where they are. Where
they may move, a search soon puts some off, at no cost, and hardly finds the way back; where they may not, it
misses what moving them saves.

Later cycles start from the best; some are hot and long, from it or from scratch. All limits are counted in
rounds; the clock only caps them. The sequences of other solvers leave the random numbers of the other cycles
as they are: inside of ``auto`` the search takes the same way as alone, until one of these or a bound is
better.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from checkmate import Problem, Solution, keep_all_peak
from checkmate.analysis import needed_ops
from checkmate.heuristics import BestHeuristic
from checkmate_solvers.machine.arrays import Ints
from checkmate_solvers.machine.driver import Driver
from checkmate_solvers.search import Incumbent, answer_easy_cases, await_machine_code, has_machine_code, offer

__all__ = ["Cycles", "LocalSearch"]

_HEATS = (0.3, 0.1, 0.3, 0.03)
"""Temperatures at which successive cycles start, relative to the mean cost of repeated runs."""
_STARTS, _START_HEAT, _SHORT, _MISSES, _BEHIND = ("in order", "scratch"), 1.0, 2, 3, 3
"""Where the short cycles from scratch start, their temperature, how many times the rounds of ordinary cycles
they have, how many in a row may find nothing better, and how many turns one counts that finds no schedule, or
whose kind has not found the best one."""
_WIDE = 0.01
"""Relative gap down to which they are worth their time."""
_HOT_STARTS = ("best", 30), ("best", 3), ("in order", 3), ("best", 10), ("best", 3), ("scratch", 3)
"""Where hot cycles start, which find schedules that keep other tensors altogether, and their temperatures."""
_LONG, _LONGEST = 6, 24
"""How many times the rounds of ordinary cycles hot ones have: from scratch, and from the best sequence."""
_LONG_SHARE = 0.6
"""Share of the remaining time that a cycle may take."""
_COOLED = 0.02
"""The temperature at the end of a cycle, relative to that at its start."""
_TIGHTENINGS, _FAILURES = 12, 12
"""Steps from the peak without recomputation to the budget, and how many more of them may fail."""
_NOISES = (1.0, 1.0, 0.3, 0.3, 0.1, 0.1)
"""Temperatures of the repairs in successive starts from scratch, relative to the usual one: cold repairs fail
less often on most graphs, more often on some."""
_STEPS, _LAST_STEPS, _MORE_STEPS = 1, 5, 300
"""Limit of the steps of a repair: the first per op of the sequence, or the second if no further failure is
allowed, and the third besides. Few repairs that succeed take longer."""
_STARTING = 5
"""The search starts in less time than judging this many schedules takes."""
_ROUNDS_PER_OP = 50
"""Limit of the rounds of a cycle."""
_ORIGIN = "local search"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSearch:
    """Ruin and recreate over sequences; see :mod:`checkmate_solvers.machine.rounds`.

    Attributes:
        rounds: of a cycle; fewer in graphs of less than a hundred ops.
        patience: cycles without an improvement after which the search stops; a long cycle counts as the
            number of others that would take its rounds.
        samples: how many ways to free bytes are compared, at most.
        fresh: of this many cycles, one is hot.
    """

    rounds: int = 5000
    patience: int = 96
    samples: int = 4
    fresh: int = 4

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
                Cycles(self, best).run()
        return best.solution()


class Cycles:
    """The cycles of one local search: each :meth:`run` goes on where the last one stopped.

    They offer the sequences that they find to the incumbent, and start from those of other solvers. They find
    nothing while there is no machine code.
    """

    def __init__(self, settings: LocalSearch, best: Incumbent) -> None:
        """Run no cycle yet."""
        self.settings, self.incumbent, self.graph = settings, best, best.problem.graph
        self.budget = best.problem.budget - self.graph.base_size
        self.best: Ints | None = None
        self.cost = math.inf
        self.length = min(settings.rounds, _ROUNDS_PER_OP * self.graph.n_ops)
        self._noises = itertools.cycle(_NOISES)
        self._drivers: dict[str, Driver] = {}
        self._found = math.inf  # the cost that the last search came to
        self._cycles = self._all_cycles()

    def run(self, most: float = math.inf) -> None:
        """Run cycles, at most ``most``, while there are patience and time."""
        able = self.incumbent.clock.has_time_to_judge(_STARTING)
        if not able or not has_machine_code(self.incumbent):
            return
        idle = 0
        while most > 0 and idle < self.settings.patience and not self.incumbent.done:
            most -= 1
            before = self.cost
            length = next(self._cycles)
            idle = 0 if self.cost < before else idle + length

    def _driver(self, role: str) -> Driver:
        """The sequence of a role, which has random numbers of its own.

        Cycles change the "own" one. First runs of "in order" stay where they are. The sequences of other
        solvers are searched by a "guest".
        """
        if role not in self._drivers:
            problem, samples = self.incumbent.problem, self.settings.samples
            fixed_order = problem.fixed_order or role == "in order"
            driver = Driver(self.graph, fixed_order=fixed_order, seed=problem.seed, samples=samples)
            self._drivers[role] = driver
        return self._drivers[role]

    def _all_cycles(self) -> Iterator[int]:
        """Run one cycle after the other, without end; the length of each, in those of an ordinary one."""
        own, heats, tried = self._own_cycles(), itertools.cycle(_HEATS), dict[str, float]()
        while True:
            for cost, origin, sequence in self.incumbent.seeds:
                if origin != _ORIGIN and cost < tried.get(origin, math.inf):
                    tried[origin] = cost
                    yield self._search("guest", sequence, next(heats))
                    break
            else:  # no other solver has a sequence that was not tried yet
                yield next(own)

    def _own_cycles(self) -> Iterator[int]:
        """Run the cycles that start from scratch, or from the best sequence of this search."""
        heats = itertools.cycle(_HEATS)
        yield from self._starts()
        for where, heat in itertools.cycle(_HOT_STARTS):
            yield self._start(where, heat, _LONGEST if where == "best" else _LONG)
            for _ in range(0 if self.best is None else self.settings.fresh - 1):
                yield self._search("own", self.best, next(heats))

    def _starts(self) -> Iterator[int]:
        """Run short cycles from scratch while they find better ones among themselves, and the gap is wide.

        While no schedule is known, none counts as a miss. A kind that does not come down to the budget, or
        whose best is not the best of all, has its turn less often.
        """
        misses, turns, least = 0, dict.fromkeys(_STARTS, 0), dict.fromkeys(_STARTS, math.inf)
        while misses < _MISSES and self.incumbent.gap >= _WIDE:
            where, cheapest = min(_STARTS, key=turns.__getitem__), min(least.values())
            length, found = self._start(where, _START_HEAT, _SHORT), self._found
            yield length  # other searches may follow
            misses = 0 if found < cheapest or math.isinf(self.cost) else misses + 1
            least[where] = min(least[where], found)
            turns[where] += 1 if math.isfinite(found) and least[where] <= cheapest else _BEHIND

    def _start(self, where: str, heat: float, length: int) -> int:
        """Search from the best sequence, if there is one, or from scratch; return the length."""
        if where == "in order" and not self.incumbent.problem.fixed_order:
            self._search("in order", None, heat, length)
            found = self._driver("in order").best if math.isfinite(self._found) else None
            return length + (1 if found is None else self._search("own", found, _START_HEAT))
        return self._search("own", self.best if where == "best" else None, heat, length)

    def _search(self, role: str, start: Sequence[int] | Ints | None, heat: float, length: int = 1) -> int:
        """Search from a sequence that fits, or from scratch if it is None; return the length.

        Computes that the sequence does not need are removed first. There are fewer rounds if the time is
        short: a cycle that ends while it is hot is lost.
        """
        driver, self._found = self._driver(role), math.inf
        driver.load(np.flatnonzero(needed_ops(self.graph)) if start is None else start)
        if self._tighten(driver) if start is None else driver.repair(self.budget, 1):
            self._keep(driver)
            left_s = _LONG_SHARE * self.incumbent.clock.left_s
            rounds = max(min(length * self.length, int(left_s / max(driver.round_s, 1e-9))), 1)
            heat *= driver.repeat_cost
            until, on_better = self.incumbent.clock.deadline, partial(self._keep, driver)
            driver.anneal(self.budget, rounds, heat, cooled=_COOLED, deadline=until, on_better=on_better)
            self._found = driver.cost
        return length

    def _keep(self, driver: Driver) -> None:
        """Offer the best sequence of a driver if it is new; it is within the budget."""
        if driver.cost < self.cost:
            self.best, self.cost = driver.best, driver.cost
            self.incumbent.keep_if_better(self.best.tolist(), _ORIGIN)

    def _tighten(self, driver: Driver) -> bool:
        """Tighten from the peak without recomputation, which is loaded; whether that reaches the budget.

        The budget shrinks in steps, smaller ones after each of a few failures.
        """
        reached = max(keep_all_peak(self.graph) - self.graph.base_size, 1)
        whole = step = (max(self.budget, 1) / reached) ** (1 / _TIGHTENINGS)
        noise, failures, until = next(self._noises), _FAILURES, self.incumbent.clock.deadline
        while reached > self.budget:
            goal, start = max(self.budget, min(int(reached * step), reached - 1)), driver.best
            most = (_STEPS if failures else _LAST_STEPS) * len(start) + _MORE_STEPS
            if driver.repair(goal, most, deadline=until, noise=noise):
                reached, step = goal, max(whole, step**2)
                continue
            driver.load(start)
            if failures == 0 or until.passed:
                return False
            failures, step = failures - 1, math.sqrt(step)
        return True

"""Local search in cycles: where each starts, how hot it runs, and when the search stops.

A *cycle* loads a sequence, and runs rounds (``machine/rounds.h``) while the temperature falls. Cycles start
from the sequences of other solvers, as soon as there are some. Without a good schedule, short cycles from
scratch come next, until several in a row find nothing better: their results differ by more than a longer
search gains. A cycle *from scratch* starts without recomputation, and lowers the allowed bytes from that peak
down to the budget. A cycle *in order* does the same, but the first runs of all ops stay in base order. Where
first runs may move, a search soon puts some off, at no cost, and hardly finds the way back; where they may
not, it misses what moving them saves.

Later cycles start from the best sequence; some are hot and long, from it or from scratch. All limits are
counted in rounds; the clock only caps them. A cycle from another solver's sequence draws its own random
numbers: inside of ``auto`` the search goes the same way as alone, until one of these cycles or a bound is
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
from checkmate_solvers.machine.arrays import Ints
from checkmate_solvers.machine.driver import Driver
from checkmate_solvers.search import Incumbent, answer_easy_cases

__all__ = ["Cycles", "LocalSearch"]

_ORIGIN = "local search"


@dataclass(frozen=True, slots=True, kw_only=True)
class _CycleSettings:
    """Ordinary and hot cycles (measured in ADR 30). A heat is relative to the mean cost of repeated runs."""

    cost: float = 5  # of starting the search, in simulations; with less time left, no search starts
    rounds_per_op: int = 50  # most rounds of an ordinary cycle, for each op of the graph
    share: float = 0.6  # of the remaining time, at most, for one cycle
    heats: tuple[float, ...] = (0.3, 0.1, 0.3, 0.03)  # at which successive ordinary cycles start
    cooled: float = 0.02  # temperature at the end of any cycle, relative to that at its start
    hot_starts: tuple[str, ...] = ("best", "best", "in order", "best", "best", "scratch")  # of hot cycles
    hot_heats: tuple[float, ...] = (30, 3, 3, 10, 3, 3)  # of these cycles: so hot that other tensors get kept
    hot_length_from_best: int = 24  # length of a hot cycle from the best sequence, in ordinary cycles
    hot_length_from_scratch: int = 6  # length of any other hot cycle, in ordinary cycles


@dataclass(frozen=True, slots=True, kw_only=True)
class _StartSettings:
    """Short cycles from scratch, which look for a good schedule to start from (measured in ADR 30 and 31)."""

    kinds: tuple[str, ...] = ("in order", "scratch")  # of starts, which take turns
    heat: float = 1.0  # at which a short cycle starts
    length: int = 2  # of a short cycle, in ordinary cycles
    misses: int = 3  # short cycles in a row that may find nothing better
    wide: float = 0.01  # relative gap; at a smaller one, no short cycles are worth their time
    behind: int = 3  # turns that a cycle counts if it finds no schedule, or its kind has not found the best


@dataclass(frozen=True, slots=True, kw_only=True)
class _DescentSettings:
    """The way from the peak without recomputation down to the budget, in steps with one repair each."""

    steps: int = 12  # from that peak to the budget, each by the same factor
    failures: int = 12  # repairs that may fail; each failure makes the step smaller
    noises: tuple[float, ...] = (1.0, 1.0, 0.3, 0.3, 0.1, 0.1)  # temperatures of the repairs in successive
    # descents, relative to the usual one: cold repairs fail less often on most graphs, more often on some
    repair_steps: int = 300  # of one repair, at most, beside those for each op of the sequence:
    repair_steps_per_op: int = 1  # few repairs that succeed take longer
    last_repair_steps_per_op: int = 5  # if no further failure is allowed


_CYCLE, _START, _DESCENT = _CycleSettings(), _StartSettings(), _DescentSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSearch:
    """Ruin and recreate over sequences; see ``machine/rounds.h``.

    Attributes:
        rounds: rounds of a cycle; fewer in graphs of less than a hundred ops.
        patience: cycles without an improvement after which the search stops; a long cycle counts as the
            number of others that would take its rounds.
        samples: how many ways to free bytes are compared, at most.
        hot_every: one cycle in this many is hot.
    """

    rounds: int = 5000
    patience: int = 96
    samples: int = 4
    hot_every: int = 4

    def solve(self, problem: Problem) -> Solution:
        """Search from scratch; proves only the easy cases."""
        best = Incumbent(problem)
        if not answer_easy_cases(best):
            with best.interruptible():
                Cycles(self, best).run()
        return best.solution()


class Cycles:
    """The cycles of one local search: each :meth:`run` goes on where the last one stopped.

    Cycles give the sequences that they find to the incumbent, and start from other solvers' sequences, too.
    """

    def __init__(self, settings: LocalSearch, best: Incumbent) -> None:
        self.settings, self.incumbent, self.graph = settings, best, best.problem.graph
        self.budget = best.problem.budget - self.graph.base_size
        self.best: Ints | None = None
        self.cost = math.inf
        self.length = min(settings.rounds, _CYCLE.rounds_per_op * self.graph.n_ops)
        self._noises = itertools.cycle(_DESCENT.noises)
        self._drivers: dict[str, Driver] = {}
        self._found = math.inf  # the cost that the last search came to
        self._cycles = self._all_cycles()

    def run(self, most: float = math.inf) -> None:
        """Run at most ``most`` cycles, while there are patience and time."""
        if not self.incumbent.clock.has_time_for(_CYCLE.cost):
            return
        idle = 0
        while most > 0 and idle < self.settings.patience and not self.incumbent.done:
            most -= 1
            before = self.cost
            length = next(self._cycles)
            idle = 0 if self.cost < before else idle + length

    def _driver(self, role: str) -> Driver:
        """The driver of a role, with random numbers of its own.

        The role "own" searches from scratch and from the best sequence; "in order" does so with all first
        runs where they are; "guest" searches from the sequences of other solvers.
        """
        if role not in self._drivers:
            problem, samples = self.incumbent.problem, self.settings.samples
            fixed_order = problem.fixed_order or role == "in order"
            driver = Driver(self.graph, fixed_order=fixed_order, seed=problem.seed, samples=samples)
            self._drivers[role] = driver
        return self._drivers[role]

    def _all_cycles(self) -> Iterator[int]:
        """Run one cycle after the other, without end; yield the length of each, in ordinary cycles."""
        own, heats, tried = self._own_cycles(), itertools.cycle(_CYCLE.heats), dict[str, float]()
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
        heats = itertools.cycle(_CYCLE.heats)
        yield from self._starts()
        for where, heat in itertools.cycle(zip(_CYCLE.hot_starts, _CYCLE.hot_heats, strict=True)):
            from_best = where == "best"
            length = _CYCLE.hot_length_from_best if from_best else _CYCLE.hot_length_from_scratch
            yield self._start(where, heat, length)
            for _ in range(0 if self.best is None else self.settings.hot_every - 1):
                yield self._search("own", self.best, next(heats))

    def _starts(self) -> Iterator[int]:
        """Run short cycles from scratch while the gap is wide and one of the last few was the best so far.

        While no schedule is known, no cycle counts as a miss. A kind that does not reach the budget, or whose
        best is not the best of all, has its turn less often.
        """
        misses, turns, least = 0, dict.fromkeys(_START.kinds, 0), dict.fromkeys(_START.kinds, math.inf)
        while misses < _START.misses and self.incumbent.gap >= _START.wide:
            where, cheapest = min(_START.kinds, key=turns.__getitem__), min(least.values())
            length, found = self._start(where, _START.heat, _START.length), self._found
            yield length  # other searches may follow
            misses = 0 if found < cheapest or math.isinf(self.cost) else misses + 1
            least[where] = min(least[where], found)
            turns[where] += 1 if math.isfinite(found) and least[where] <= cheapest else _START.behind

    def _start(self, where: str, heat: float, length: int) -> int:
        """Search from the best sequence, or from scratch; return the length in ordinary cycles."""
        if where == "in order" and not self.incumbent.problem.fixed_order:
            self._search("in order", None, heat, length)
            found = self._driver("in order").best if math.isfinite(self._found) else None
            return length + (1 if found is None else self._search("own", found, _START.heat))
        return self._search("own", self.best if where == "best" else None, heat, length)

    def _search(self, role: str, start: Sequence[int] | Ints | None, heat: float, length: int = 1) -> int:
        """Search from a sequence that fits, or from scratch if it is None; return the length.

        Computes that the sequence does not need are removed first. If the time is short, the cycle has fewer
        rounds: one that ends while it is hot is lost.
        """
        driver, self._found = self._driver(role), math.inf
        driver.load(np.flatnonzero(needed_ops(self.graph)) if start is None else start)
        if self._descend(driver) if start is None else driver.repair(self.budget, 1):
            self._keep(driver)
            left_s = _CYCLE.share * self.incumbent.clock.left_s
            rounds = max(min(length * self.length, int(left_s / max(driver.round_s, 1e-9))), 1)
            heat *= driver.repeat_cost
            until, on_better = self.incumbent.clock.deadline, partial(self._keep, driver)
            driver.anneal(
                self.budget, rounds, heat, cooled=_CYCLE.cooled, deadline=until, on_better=on_better
            )
            self._found = driver.cost
        return length

    def _keep(self, driver: Driver) -> None:
        """Give the best sequence of a driver, which is within the budget, to the incumbent if it is new."""
        if driver.cost < self.cost:
            self.best, self.cost = driver.best, driver.cost
            self.incumbent.keep_if_better(self.best.tolist(), _ORIGIN)

    def _descend(self, driver: Driver) -> bool:
        """Repair the sequence without recomputation, which is loaded; return whether it reaches the budget.

        The allowed bytes shrink in steps from its peak to the budget, by smaller steps after each failure.
        """
        reached = max(keep_all_peak(self.graph) - self.graph.base_size, 1)
        whole = step = (max(self.budget, 1) / reached) ** (1 / _DESCENT.steps)
        noise, failures, until = next(self._noises), _DESCENT.failures, self.incumbent.clock.deadline
        while reached > self.budget:
            goal, start = max(self.budget, min(int(reached * step), reached - 1)), driver.best
            per_op = _DESCENT.repair_steps_per_op if failures else _DESCENT.last_repair_steps_per_op
            most = per_op * len(start) + _DESCENT.repair_steps
            if driver.repair(goal, most, deadline=until, noise=noise):
                reached, step = goal, max(whole, step**2)
                continue
            driver.load(start)
            if failures == 0 or until.passed:
                return False
            failures, step = failures - 1, math.sqrt(step)
        return True

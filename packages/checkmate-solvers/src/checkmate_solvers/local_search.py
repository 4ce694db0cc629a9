"""The driver of the local search: where it starts, how hot it runs, when it stops, whom it tells.

A *cycle* loads a sequence, and runs rounds while the temperature falls. The cycles differ in what they start
from (the best so far, seeds of other solvers, fresh starts) and in how hot and long they are. Fresh starts
tighten the budget in steps, from the peak of keeping everything down to what is asked for. Most cycles from
the best first give it more room for a while, and then tighten in the same way: strategic oscillation (Glover
and Hao, "The case for strategic oscillation", Annals of Operations Research 183, 2011). All limits are
counted in rounds, and the clock is only a cap: between pieces of a few rounds it is looked at.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from checkmate import Problem, Solution, keep_all_peak
from checkmate.analysis import needed_ops
from checkmate.heuristics import BestHeuristic
from checkmate_solvers.machine.arrays import (
    ANY_BUDGET,
    BEST,
    BEST_LENGTH,
    COST,
    TEMPERATURE,
    Ints,
    state_of,
)
from checkmate_solvers.machine.code import machine_code
from checkmate_solvers.search.incumbent import Search

__all__ = ["LocalSearch"]

_NOTHING = np.zeros(0, dtype=np.int64)
_HEATS = (0.3, 0.1, 0.3, 0.03)
"""Temperatures at which cycles start, relative to the mean cost of what runs again."""
_COOLED = 0.02
"""The temperature at the end of a cycle, relative to that at its start."""
_LONGER = (1, 1, 2, 1, 1, 2, 4)
"""Lengths of successive cycles: Luby's sequence, over and over."""
_ROOMS = (0.1, 0.3, 0.2, 0.0, 0.5)
"""How much more than the budget there is at first in successive cycles from the best, relative to it."""
_RELAXED_HEAT, _RELAXED_COOLED = 0.3, 0.1
"""Temperatures while there is more room: at the start as above, at the end relative to that."""
_TIGHTENINGS, _RETURNS = 12, 4
"""Steps from keeping everything down to the budget; and from more room."""
_FAILURES = 12
"""How many steps may fail on the way down from keeping everything."""
_PIECE_S = 0.03
_FIRST_PIECE = 64
_STEPS = 500
"""Steps of a repair between two looks at the clock."""
_SAMPLES = (4, 16, 1)
"""How many ways to make room a step compares at each attempt."""
_WARM = 16
"""Between two steps come so many times fewer rounds than in the shortest cycle."""
_STARTING = 5
"""The search starts in about the time that judging this many schedules takes."""
_ROUNDS_PER_OP = 50
"""Limit of the rounds of the shortest cycle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSearch:
    """Ruin and recreate over sequences; see :mod:`checkmate_solvers.machine.rounds`.

    Attributes:
        rounds: of the shortest cycle; fewer in graphs of less than a hundred ops.
        patience: stop after so many cycles in which nothing better was found.
        samples: how many ways to make room are compared, at most.
        fresh: every so many cycles one starts from scratch.
    """

    rounds: int = 5000
    patience: int = 56
    samples: int = 4
    fresh: int = 7

    def solve(self, problem: Problem) -> Solution:
        """Search from scratch; proves only what is obvious.

        While the machine code is being compiled, it waits; in vain, the best built-in heuristic answers.
        """
        search = Search(problem)
        if not search.start():
            with search.interruptible():
                if not search.await_machine_code():
                    found = BestHeuristic().solve(problem).schedule
                    search.offer(None if found is None else found.sequence.tolist(), "heuristics")
                self.improve(search)
        return search.solution()

    def improve(self, search: Search, seeds: Iterable[Sequence[int]] = (), cycles: int | None = None) -> None:
        """Offer better and better sequences; none where there is no machine code yet.

        Args:
            search: what is known so far; its schedule is a seed, too.
            seeds: valid sequences within the budget.
            cycles: the most cycles; default as many as there is patience for.
        """
        able = search.has_time_to_judge(_STARTING) and search.has_machine_code(even_if_small=True)
        if not search.done and able:
            _Cycles(self, search, [list(map(int, seed)) for seed in seeds]).run(cycles)


class _Cycles:
    """One call of ``improve``; all fields are its state."""

    def __init__(self, settings: LocalSearch, search: Search, seeds: list[list[int]]) -> None:
        self.settings, self.search = settings, search
        graph, problem = search.problem.graph, search.problem
        if search.sequence is not None:
            seeds = [search.sequence, *seeds]
        self.seeds = [np.array(seed, dtype=np.int64) for seed in seeds]
        self.keep_all: Ints = np.flatnonzero(needed_ops(graph)).astype(np.int64)
        self.budget = problem.budget - graph.base_size
        longest = max((len(seed) for seed in self.seeds), default=0)
        self.state = state_of(graph, fixed_order=problem.fixed_order, seed=problem.seed, longest=longest)
        self.best, self.cost = _NOTHING, math.inf
        self.piece = _FIRST_PIECE
        self.length = min(settings.rounds, _ROUNDS_PER_OP * graph.n_ops)
        self.work = machine_code()

    def run(self, cycles: int | None) -> None:
        """Cycle until nothing better is found any more, or time is up."""
        idle = turn = 0
        while not self.search.done and idle < self.settings.patience and (cycles is None or turn < cycles):
            before = self.cost
            rounds = self.length * _LONGER[turn % len(_LONGER)]
            if self._begin(turn, rounds):
                self._cool(_HEATS[turn % len(_HEATS)] * self._scale(), rounds)
            turn += 1
            idle = 0 if self.cost < before else idle + 1

    def _begin(self, turn: int, rounds: int) -> bool:
        """Load what a cycle starts from; False if there is nothing within the budget."""
        if turn < len(self.seeds):
            return self._load(self.seeds[turn])
        if (turn - len(self.seeds)) % self.settings.fresh == 0 or not len(self.best):
            return self._tightened()
        more = _ROOMS[turn % len(_ROOMS)]
        return self._relaxed(more, max(1, rounds // 4)) if more else self._load(self.best)

    def _load(self, sequence: Ints) -> bool:
        """Load a sequence that fits."""
        self.state.totals[BEST] = math.inf
        fits, _ = self.work(self.state, sequence, self.budget, 1, 0, 1.0, 1)
        self._tell()
        return fits

    def _tightened(self) -> bool:
        """Start from keeping everything, and tighten the budget."""
        self._reload(self.keep_all)
        graph = self.search.problem.graph
        if not self._squeezed(max(keep_all_peak(graph) - graph.base_size, 1), _TIGHTENINGS, _FAILURES):
            return False
        self._tell()
        return True

    def _relaxed(self, more: float, rounds: int) -> bool:
        """Start from the best; search with more room for a while, and take the room away again."""
        room = int(self.budget * (1 + more))
        self._load(self.best)
        self.state.totals[BEST] = math.inf
        self.state.totals[TEMPERATURE] = _RELAXED_HEAT * self._scale()
        self._rounds(rounds, _RELAXED_COOLED ** (1 / rounds), room)
        return self._squeezed(room, _RETURNS, 0) or self._load(self.best)

    def _squeezed(self, reached: int, steps: int, failures: int) -> bool:
        """Tighten the budget in steps, from what is reached; smaller steps where one fails, which few may."""
        state = self.state
        whole = step = (max(self.budget, 1) / reached) ** (1 / steps) if reached > self.budget else 1.0
        while reached > self.budget or math.isinf(state.totals[BEST]):
            goal = max(self.budget, min(int(reached * step), reached - 1))
            if self._repaired(goal):
                reached, step = goal, max(whole, step**2)
            elif failures == 0 or self.search.left_s <= 0:
                return False
            else:
                failures, step = failures - 1, math.sqrt(step)
            if reached > self.budget:
                state.totals[TEMPERATURE] = 0.1 * self._scale()
                self._rounds(self.length // _WARM, 1.0, reached)
        return True

    def _repaired(self, budget: int) -> bool:
        """Whether what is loaded could be brought within a budget; if not, it is as before."""
        start, cost = self.state.best[: self.state.counts[BEST_LENGTH]].copy(), self.state.totals[BEST]
        self.state.totals[BEST] = math.inf
        for samples in _SAMPLES:
            steps = 5 * len(start) + 300
            while steps > 0 and self.search.left_s > 0:
                fits, _ = self.work(self.state, _NOTHING, budget, min(steps, _STEPS), 0, 1.0, samples)
                if fits:
                    return True
                steps -= _STEPS
            if self.search.left_s <= 0:  # nothing goes on from here
                return False
            self._reload(start)
        self.state.totals[BEST] = cost
        return False

    def _reload(self, sequence: Ints) -> None:
        """Load a sequence as it is, and call it the best."""
        self.work(self.state, sequence, ANY_BUDGET, 0, 0, 1.0, 1)
        self.state.best[: len(sequence)] = sequence
        self.state.counts[BEST_LENGTH] = len(sequence)
        self.state.totals[BEST] = self.state.totals[COST]

    def _cool(self, heat: float, rounds: int) -> None:
        """Rounds from hot to cold."""
        self.state.totals[TEMPERATURE] = heat
        self._rounds(rounds, _COOLED ** (1 / rounds), self.budget)
        self._tell()

    def _rounds(self, rounds: int, cooling: float, budget: int) -> None:
        """Rounds in pieces; how they are cut makes no difference to what they find."""
        while rounds > 0 and self.search.left_s > 0:
            piece, started = min(rounds, self.piece), time.monotonic()
            _, better = self.work(self.state, _NOTHING, budget, 0, piece, cooling, self.settings.samples)
            taken = time.monotonic() - started
            self.piece = max(1, min(int(piece * _PIECE_S / max(taken, 1e-6)), 2 * piece))
            rounds -= piece
            if better and budget == self.budget:
                self._tell()

    def _scale(self) -> float:
        """Mean cost of what runs again; of what can, if nothing does."""
        graph, again = self.search.problem.graph, np.maximum(self.state.runs[:-1] - 1, 0)
        if again.sum() and float(again @ graph.costs) > 0:
            return float(again @ graph.costs) / float(again.sum())
        return float(graph.costs.mean())

    def _tell(self) -> None:
        """Hand on what is new and better."""
        cost = float(self.state.totals[BEST])
        if cost < self.cost:
            self.best = self.state.best[: self.state.counts[BEST_LENGTH]].copy()
            self.cost = cost
            self.search.judge(self.best.tolist(), "local search")

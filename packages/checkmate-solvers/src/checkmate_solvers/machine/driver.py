"""One sequence of ops: bring it within a budget, and search around it, in C.

Work is counted in steps and rounds, never in seconds, and random choices come from the seed. The clock is
only looked at between pieces of the work, and the cuts between pieces do not change the result.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from checkmate import DFGraph
from checkmate.solving import NEVER, Deadline
from checkmate_solvers.machine.arrays import ANY_BUDGET, BEST, BEST_LENGTH, TEMPERATURE, Ints, state_of
from checkmate_solvers.machine.library import search

__all__ = ["Driver"]

_NOTHING = np.zeros(0, dtype=np.int64)
_STEPS = 100
"""Steps of a repair between two looks at the clock."""
_PIECE_S, _FIRST_ROUNDS = 0.03, 64
"""About how many seconds of search lie between two looks at the clock; rounds before the first look."""


class Driver:
    """Holds one sequence of a graph, and the best one that came of it.

    All budgets are bytes beside :attr:`checkmate.DFGraph.base_size`. With ``fixed_order``, first runs of
    needed ops stay where they are. At most ``samples`` ways to free bytes are compared.

    Attributes:
        round_s: seconds that a round took lately; 0 before the first.
    """

    def __init__(self, graph: DFGraph, *, fixed_order: bool, seed: int, samples: int = 4) -> None:
        self._arrays = partial(state_of, graph, fixed_order=fixed_order, seed=seed)
        self._state = self._arrays()
        self._costs, self._samples = graph.costs, samples
        self._piece, self.round_s = _FIRST_ROUNDS, 0.0

    @property
    def best(self) -> Ints:
        """Ops of the best sequence, a copy."""
        return self._state.best[: self._state.counts[BEST_LENGTH]].copy()

    @property
    def cost(self) -> float:
        """Cost of the best sequence."""
        return float(self._state.totals[BEST])

    @property
    def repeat_cost(self) -> float:
        """Mean cost of the repeated runs in the current sequence; of all ops if there are none."""
        repeats = np.maximum(self._state.runs[:-1] - 1, 0)
        cost = float(repeats @ self._costs)
        return cost / float(repeats.sum()) if cost > 0 else float(self._costs.mean())

    def load(self, sequence: Sequence[int] | Ints) -> None:
        """Take a valid sequence as it is, whatever its peak, and call it the best."""
        ops = np.asarray(sequence, dtype=np.int64)
        if len(ops) + 2 * len(self._costs) > len(self._state.op):
            random, self._state = self._state.random, self._arrays(longest=len(ops))
            self._state.random[:] = random
        search(self._state, ops, ANY_BUDGET)

    def repair(self, budget: int, steps: int, *, deadline: Deadline = NEVER, noise: float = 1.0) -> bool:
        """Free bytes where most are held until everything fits; then drop computes that became needless.

        Each step drops or moves one compute; ``noise`` is the temperature, relative to the usual one.

        Returns:
            Whether the result is within the budget; it then is the best.
        """
        self._state.totals[TEMPERATURE] = noise
        while steps > 0 and not deadline.passed:
            most = min(steps, _STEPS)
            if search(self._state, _NOTHING, budget, steps=most, samples=self._samples) >= 0:
                return True
            steps -= _STEPS
        return False

    def anneal(
        self,
        budget: int,
        rounds: int,
        heat: float,
        *,
        cooled: float = 1.0,
        deadline: Deadline = NEVER,
        on_better: Callable[[], object] = lambda: None,
    ) -> None:
        """Run rounds of local search from the current sequence, which must be within the budget.

        The temperature, a cost, is ``heat`` at the start, and ``cooled`` times that at the end. After each
        piece of the work that found a new best, ``on_better`` is called.
        """
        self._state.totals[TEMPERATURE] = heat
        cooling = math.pow(cooled, 1 / max(rounds, 1))
        while rounds > 0 and not deadline.passed:
            piece, started = min(rounds, self._piece), time.monotonic()
            better = search(
                self._state, _NOTHING, budget, rounds=piece, cooling=cooling, samples=self._samples
            )
            self.round_s = (time.monotonic() - started) / piece
            self._piece = max(1, min(int(_PIECE_S / max(self.round_s, 1e-9)), 2 * piece))
            rounds -= piece
            if better:
                on_better()

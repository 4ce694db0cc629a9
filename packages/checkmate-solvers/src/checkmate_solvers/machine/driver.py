"""Sequences brought within a budget by machine code: milliseconds, whatever the size of the graph.

One step frees bytes where most is held, by dropping or moving what costs least there; see
:mod:`checkmate_solvers.machine.drops`. In the end, computes that have become needless go. Steps are counted,
not timed, and what is left to chance in them comes from the seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from checkmate import DFGraph
from checkmate.solving import NEVER, Deadline
from checkmate_solvers.machine.arrays import ANY_BUDGET, BEST, BEST_LENGTH, Ints, State, state_of
from checkmate_solvers.machine.code import machine_code

__all__ = ["Repair"]

_NOTHING = np.zeros(0, dtype=np.int64)
_PIECE = 100
"""Steps between two looks at the clock."""
_STEPS = 500
"""The most steps: what needs more mostly never ends, or ends dear."""
_SAMPLES = 4
"""How many ways to make room are compared."""


class Repair:
    """Repairs sequences of one graph."""

    def __init__(self, graph: DFGraph, *, fixed_order: bool, seed: int) -> None:
        """Nothing is loaded yet.

        Args:
            graph: the graph.
            fixed_order: first runs of needed ops stay where they are.
            seed: of every choice that is left to chance.
        """
        self._graph, self._fixed_order, self._seed = graph, fixed_order, seed
        self._state: State | None = None

    def fitted(self, sequence: Sequence[int], budget: int, *, deadline: Deadline = NEVER) -> list[int] | None:
        """A sequence within the budget that is like a given one; None if none was found.

        Args:
            sequence: valid, of any peak.
            budget: bytes, graph inputs and fixed size included.
            deadline: give up when it has passed.
        """
        work, given = machine_code(), np.array(sequence, dtype=np.int64)
        state, room = self._room_for(given), budget - self._graph.base_size
        work(state, given, ANY_BUDGET, 0, 0, 1.0, 1)
        state.totals[BEST] = math.inf
        for _ in range(_STEPS // _PIECE):
            fits, _ = work(state, _NOTHING, room, _PIECE, 0, 1.0, _SAMPLES)
            if fits:
                best: list[int] = state.best[: state.counts[BEST_LENGTH]].tolist()
                return best
            if deadline.passed:
                break
        return None

    def _room_for(self, sequence: Ints) -> State:
        """Arrays with room for a sequence, and for repairing it."""
        length = len(sequence) + 2 * self._graph.n_ops
        if self._state is None or length > len(self._state.op):
            self._state = state_of(
                self._graph, fixed_order=self._fixed_order, seed=self._seed, longest=len(sequence)
            )
        return self._state

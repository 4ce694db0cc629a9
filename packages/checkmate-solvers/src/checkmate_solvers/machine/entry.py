"""The one compiled function that Python calls, kept on disk once compiled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np

from checkmate import DFGraph
from checkmate_solvers.machine.arrays import ANY_BUDGET, BLOCKS, LOGGED, Ints, State, state_of
from checkmate_solvers.machine.held import held
from checkmate_solvers.machine.rounds import repair, run_rounds, trim
from checkmate_solvers.machine.sequence import keep_best, load

__all__ = ["Entry", "entry", "try_out"]

Entry = Callable[[State, Ints, int, int, int, float, int], tuple[bool, int]]
"""Machine code for the whole search, in pieces of any size: ``work`` below."""


def entry(folder: Path) -> Entry:
    """Make the entry; its first call compiles it, or loads what was compiled before.

    Args:
        folder: where the machine code is kept. Numba unpickles what it finds there.
    """
    configured: Any = numba.config

    def work(
        state: State, sequence: Ints, budget: int, steps: int, rounds: int, cooling: float, samples: int
    ) -> tuple[bool, int]:
        """Load a sequence, repair it, run rounds; each step is optional.

        Args:
            state: the arrays.
            sequence: to load first, valid, and the best then; empty = go on with the current one.
            budget: bytes beside the base bytes.
            steps: the most steps of a repair, whose result, trimmed, becomes the best. 0 = no repair.
            rounds: how many rounds follow; the sequence is within the budget then.
            cooling: factor of the temperature for each round.
            samples: how many ways to free bytes are compared.

        Returns:
            Whether the repair succeeded, and how many rounds found a new best.
        """
        s = held(state)
        if len(sequence) > 0 or s.counts[BLOCKS] == 0:
            load(s, sequence)
            keep_best(s)
        if steps > 0:
            s.counts[LOGGED] = 0
            if not repair(s, budget, steps, samples):
                return False, 0
            s.counts[LOGGED] = 0
            trim(s, budget)
            keep_best(s)
        return True, run_rounds(s, budget, rounds, cooling, samples)

    where = {"CACHE_DIR": str(folder), "CACHE_LOCATOR_CLASSES": ""}
    before = {name: getattr(configured, name, "") for name in where}
    vars(configured).update(where)  # overrides the environment and files
    try:
        kept: Any = numba.njit(work, cache=True, error_model="numpy")
    finally:
        vars(configured).update(before)
    machine_code: Entry = kept
    return machine_code


def try_out(work: Entry) -> None:
    """Call the entry once, so that later calls spend no time on compiling or loading."""
    pair = DFGraph.from_nodes(cost=[1, 1], size=[1, 1], deps=[[], [0]])
    work(state_of(pair, fixed_order=False, seed=0), np.arange(2), ANY_BUDGET, 1, 1, 1.0, 1)

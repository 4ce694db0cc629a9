"""What Python calls: one compiled entry, kept on disk once compiled if a folder can be written to.

Numba notices when the file of a cached function changes, but not when a function that it calls does. So the
entry closes over a digest of the sources of this package, which then is part of its key.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import Any, Protocol

import numba
import numpy as np
from numba.core import types
from numba.experimental import structref

from checkmate_solvers.local.arrays import BLOCKS, LOGGED, Ints, State
from checkmate_solvers.local.jit import compiled
from checkmate_solvers.local.load import keep_best, load
from checkmate_solvers.local.rounds import repair, run_rounds, trim

__all__ = ["Entry", "entry"]


class _HeldType(types.StructRef):
    """One pointer to all arrays; machine code hands a tuple on array by array, which is slow."""


class _Held(structref.StructRefProxy):
    """Its constructor, for machine code."""


_untyped: Any = structref
_untyped.register(_HeldType)
_untyped.define_proxy(_Held, _HeldType, list(State._fields))
_PYTHON = {"machine.py", "reference.py", "solver.py"}
_INTERPRETED = bool(vars(numba.config)["DISABLE_JIT"])


class Entry(Protocol):
    """Machine code for all of the search, in pieces of any size."""

    def __call__(
        self,
        state: State,
        sequence: Ints,
        budget: int,
        steps: int,
        rounds: int,
        cooling: float,
        samples: int,
    ) -> tuple[bool, int]:
        """Load a sequence, repair it, run rounds; each only if asked for.

        Args:
            state: the arrays.
            sequence: to load first, valid; empty = go on with what is there.
            budget: bytes beside the base bytes.
            steps: the most steps of a repair; what it finds, trimmed, becomes the best. 0 = no repair.
            rounds: how many rounds follow; the sequence is within the budget then.
            cooling: what each round multiplies the temperature by.
            samples: how many ways to make room are compared.

        Returns:
            Whether the repair succeeded, and how many rounds found a new best.
        """


def _digest() -> int:
    """Of all sources of this package that can be part of the machine code."""
    sources = sorted(path for path in Path(__file__).parent.glob("*.py") if path.name not in _PYTHON)
    content = b"".join(path.read_bytes() for path in sources)
    return int.from_bytes(hashlib.sha256(content).digest()[:7], "big")


def entry() -> Entry:
    """Make the entry; its first call compiles it, or loads what was compiled before."""
    version = _digest()
    held: Any = State if _INTERPRETED else _Held

    def work(
        state: State, sequence: Ints, budget: int, steps: int, rounds: int, cooling: float, samples: int
    ) -> tuple[bool, int]:
        s = held(*state)
        if version == 0 or len(sequence) > 0 or s.counts[BLOCKS] == 0:
            load(s, sequence)
        if steps > 0:
            s.counts[LOGGED] = 0
            if not repair(s, budget, np.inf, steps, samples):
                return False, 0
            s.counts[LOGGED] = 0
            trim(s, budget)
            keep_best(s)
        return True, run_rounds(s, budget, rounds, cooling, samples)

    machine_code: Any
    try:
        machine_code = numba.njit(work, cache=True, error_model="numpy")
    except RuntimeError:
        logging.getLogger(__name__).warning("no folder to keep machine code in: set NUMBA_CACHE_DIR to one")
        machine_code = compiled(work)
    kept: Entry = machine_code
    return kept

"""What Python calls: the compiled entries, kept on disk once compiled.

Numba notices when the file of a cached function changes, but not when a function that it calls does. So each
entry closes over a digest of all sources of this package, which then is part of its key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
from numba.core import types
from numba.experimental import structref

from checkmate_solvers.local import load as loading
from checkmate_solvers.local import rounds as searching
from checkmate_solvers.local.arrays import LOGGED, Ints, State

__all__ = ["Entries", "entries"]


class _HeldType(types.StructRef):  # type: ignore[misc]
    """One pointer to all arrays; machine code hands a tuple on array by array, which is slow."""


class _Held(structref.StructRefProxy):  # type: ignore[misc]
    """Its constructor, for machine code."""


structref.register(_HeldType)
structref.define_proxy(_Held, _HeldType, list(State._fields))
_INTERPRETED = bool(numba.config.DISABLE_JIT)


class Entries(NamedTuple):
    """The compiled entries; each takes the arrays first, and returns the version of the sources first.

    Attributes:
        load: see :func:`checkmate_solvers.local.load.load`.
        repair: see :func:`checkmate_solvers.local.rounds.repair`, at any cost; not to be undone.
        rounds: see :func:`checkmate_solvers.local.rounds.run_rounds`.
        settle: trim the sequence, which is within the budget, and call it the best.
    """

    load: Callable[[State, Ints], int]
    repair: Callable[[State, int, int, int], tuple[int, bool]]
    rounds: Callable[[State, int, int, float, int], tuple[int, int]]
    settle: Callable[[State, int], int]


def _digest() -> int:
    """Of all sources of this package."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    content = b"".join(path.read_bytes() for path in sources)
    return int.from_bytes(hashlib.sha256(content).digest()[:7], "big")


def entries() -> Entries:
    """Compile, or find what was compiled before, at the first call of each."""
    version = _digest()
    held: Any = State if _INTERPRETED else _Held
    cached: Any = numba.njit(cache=True, error_model="numpy")

    @cached  # type: ignore[untyped-decorator]
    def load(state: State, sequence: Ints) -> int:
        loading.load(held(*state), sequence)
        return version

    @cached  # type: ignore[untyped-decorator]
    def repair(state: State, budget: int, steps: int, samples: int) -> tuple[int, bool]:
        s = held(*state)
        s.counts[LOGGED] = 0
        fits = searching.repair(s, budget, np.inf, steps, samples)
        s.counts[LOGGED] = 0
        return version, fits

    @cached  # type: ignore[untyped-decorator]
    def rounds(state: State, budget: int, many: int, cooling: float, samples: int) -> tuple[int, int]:
        return version, searching.run_rounds(held(*state), budget, many, cooling, samples)

    @cached  # type: ignore[untyped-decorator]
    def settle(state: State, budget: int) -> int:
        s = held(*state)
        searching.trim(s, budget)
        s.counts[LOGGED] = 0
        loading.keep_best(s)
        return version

    return Entries(load, repair, rounds, settle)

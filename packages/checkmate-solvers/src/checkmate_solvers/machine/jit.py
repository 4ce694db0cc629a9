"""Functions that become machine code, and random numbers that are the same with and without it.

Functions marked with :func:`compiled` may use each other, arrays and numbers, nothing else. Only the entries,
which Python calls, are cached on disk (:mod:`checkmate_solvers.machine.entry`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
import numpy.typing as npt

__all__ = ["compiled", "draw"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(function: _Function) -> _Function:
    """Compile at the first call; ``NUMBA_DISABLE_JIT=1`` turns that off."""
    machine_code: _Function = numba.njit(function, error_model="numpy")
    return machine_code


@compiled
def draw(random: npt.NDArray[np.int64]) -> float:
    """A random number in (0, 1): L'Ecuyer's combined generator (CACM 31, 1988), in plain int64."""
    random[0] = random[0] * 40014 % 2147483563
    random[1] = random[1] * 40692 % 2147483399
    both = random[0] - random[1]
    if both < 1:
        both += 2147483562
    return float(both) / 2147483563.0

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

_LOW_52, _LOW_57 = 2**52 - 1, 2**57 - 1

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(function: _Function) -> _Function:
    """Compile at the first call; ``NUMBA_DISABLE_JIT=1`` turns that off."""
    machine_code: _Function = numba.njit(function, error_model="numpy")
    return machine_code


@compiled
def draw(random: npt.NDArray[np.int64]) -> float:
    """A random number in (0, 1): Marsaglia's xorshift (Journal of Statistical Software 8, 2003), 64 bits."""
    x = random[0]
    x ^= x << 13
    x ^= (x >> 7) & _LOW_57
    x ^= x << 17
    random[0] = x
    return (float((x >> 12) & _LOW_52) + 0.5) * 2.0**-52

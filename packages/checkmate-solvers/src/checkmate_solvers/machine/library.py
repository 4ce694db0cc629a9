"""The local search in C, as one function of Python.

The build of this distribution compiles ``search.c`` into a library. Its functions get the arrays of a state
by address.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np

from checkmate_solvers.machine.arrays import Ints, State

__all__ = ["c_functions", "open_library", "search"]

_FILE = Path(__file__).with_name("libsearch.so.1")
_ADDRESS, _INT, _DOUBLE = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


def open_library(file: Path) -> ctypes.CDLL:
    """Load the library from a file.

    Raises:
        ImportError: if it is not there, or was compiled for another system.
    """
    try:
        library = ctypes.CDLL(str(file))
    except OSError as error:
        raise ImportError(f"the local search is not compiled, or not for this system: {error}") from error
    library.search.argtypes = [_ADDRESS, _ADDRESS, _INT, _INT, _INT, _INT, _DOUBLE, _INT]
    library.search.restype = _INT
    return library


c_functions = open_library(_FILE)
"""The functions of ``search.c`` and of the files that it includes, by name."""


def search(
    state: State,
    sequence: Ints,
    budget: int,
    *,
    steps: int = 0,
    rounds: int = 0,
    cooling: float = 1.0,
    samples: int = 1,
) -> int:
    """Load a sequence, repair it, run rounds; each step is optional.

    Args:
        state: the arrays.
        sequence: a valid sequence to load, which becomes the best; empty = go on with the current one.
        budget: bytes beside the base bytes.
        steps: most steps of a repair, whose result, trimmed, becomes the best; 0 = no repair.
        rounds: rounds of local search, from a sequence within the budget.
        cooling: factor of the temperature for each round.
        samples: how many ways to free bytes are compared.

    Returns:
        How many rounds found a new best; −1 if the repair failed.
    """
    ops = np.ascontiguousarray(sequence, dtype=np.int64)
    better: int = c_functions.search(
        state.table.ctypes.data, ops.ctypes.data, len(ops), budget, steps, rounds, cooling, samples
    )
    return better

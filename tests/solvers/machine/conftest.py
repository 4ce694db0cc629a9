"""The library's single functions, and the arrays of a search as lists of ops and bytes."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from checkmate_solvers.machine import library
from checkmate_solvers.machine.arrays import BLOCKS, SHIFT, State

INT, BOOL, DOUBLE = ctypes.c_int64, ctypes.c_bool, ctypes.c_double
FUNCTIONS = {  # of the C files: their arguments after the state, and their result
    "discard": ((INT,), None),
    "exceeds": ((INT, INT, INT), BOOL),
    "idle": ((INT,), BOOL),
    "insert_node": ((INT, INT), INT),
    "latest": ((INT, INT), INT),
    "lay_out": ((), None),
    "make_room": ((INT, INT, INT, INT, DOUBLE), BOOL),
    "peak": ((), INT),
    "remove_node": ((INT,), None),
    "undo": ((INT,), None),
}
if checked := os.environ.get("CHECKED_LIBRARY"):  # test_library.py sets it
    library.c_functions = library.open_library(Path(checked))

Seen = Callable[[State], tuple[list[int], list[int]]]


@pytest.fixture(scope="session")
def seen() -> Seen:
    """The ops of the sequence that a state holds, and the bytes while each runs."""

    def read(state: State) -> tuple[list[int], list[int]]:
        blocks = range(state.counts[BLOCKS])
        places = np.array([(b << SHIFT) + i for b in blocks for i in range(state.filled[b])], dtype=np.int64)
        ops, memory = state.op[state.at[places]], state.mem[places] + state.add[places >> SHIFT]
        return ops[:-1].tolist(), memory[:-1].tolist()

    return read


@pytest.fixture(scope="session")
def single() -> SimpleNamespace:
    """Functions that edit a sequence, by name; the state comes first."""
    return SimpleNamespace(**{name: partial(_call, name) for name in FUNCTIONS})


def _call(name: str, state: State, *arguments: float) -> int | None:
    types, result = FUNCTIONS[name]
    function = library.c_functions[name]
    function.argtypes, function.restype = (ctypes.c_void_p, *types), result
    return function(state.table.ctypes.data, *arguments)

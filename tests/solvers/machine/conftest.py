"""The machine code, and its arrays as lists of ops and bytes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from checkmate_solvers.machine.arrays import BLOCKS, SHIFT, State
from checkmate_solvers.machine.code import machine_code
from checkmate_solvers.machine.entry import Entry

Seen = Callable[[State], tuple[list[int], list[int]]]


@pytest.fixture(scope="session")
def work() -> Entry:
    """Machine code for all of the search; interpreted under ``NUMBA_DISABLE_JIT=1``."""
    return machine_code()


@pytest.fixture(scope="session")
def seen() -> Seen:
    """The ops of the sequence that a state holds, and the bytes while each runs."""

    def read(state: State) -> tuple[list[int], list[int]]:
        blocks = range(state.counts[BLOCKS])
        places = np.array([(b << SHIFT) + i for b in blocks for i in range(state.filled[b])], dtype=np.int64)
        ops, memory = state.op[state.at[places]], state.mem[places] + state.add[places >> SHIFT]
        return ops[:-1].tolist(), memory[:-1].tolist()

    return read

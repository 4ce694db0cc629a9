"""The machine code, and its arrays as lists of ops and bytes."""

from __future__ import annotations

from collections.abc import Callable

import numba
import numpy as np
import pytest

from checkmate_solvers.machine import entry as entry_module
from checkmate_solvers.machine.arrays import BLOCKS, SHIFT, State
from checkmate_solvers.machine.code import machine_code
from checkmate_solvers.machine.entry import Entry

Seen = Callable[[State], tuple[list[int], list[int]]]


@pytest.fixture(scope="session")
def work() -> Entry:
    """Machine code for all of the search; interpreted under ``NUMBA_DISABLE_JIT=1``."""
    return machine_code()


class _FromTheStart(np.ndarray):
    """An array without negative indices: machine code does not count those from the end."""

    def __getitem__(self, index):
        _check(index)
        return super().__getitem__(index)

    def __setitem__(self, index, value) -> None:
        _check(index)
        super().__setitem__(index, value)


def _check(index: object) -> None:
    for i in index if isinstance(index, tuple) else (index,):
        if isinstance(i, int | np.integer):
            assert i >= 0


@pytest.fixture(autouse=True)
def no_index_is_negative(monkeypatch) -> None:
    """Check every index that the search uses, where it is interpreted."""
    if vars(numba.config)["DISABLE_JIT"]:
        monkeypatch.setattr(
            entry_module, "held", lambda s: State(*(array.view(_FromTheStart) for array in s))
        )


@pytest.fixture(scope="session")
def seen() -> Seen:
    """The ops of the sequence that a state holds, and the bytes while each runs."""

    def read(state: State) -> tuple[list[int], list[int]]:
        blocks = range(state.counts[BLOCKS])
        places = np.array([(b << SHIFT) + i for b in blocks for i in range(state.filled[b])], dtype=np.int64)
        ops, memory = state.op[state.at[places]], state.mem[places] + state.add[places >> SHIFT]
        return ops[:-1].tolist(), memory[:-1].tolist()

    return read

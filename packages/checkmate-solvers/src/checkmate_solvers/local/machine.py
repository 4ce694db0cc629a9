"""The machine code of the local search: loaded once in a process, compiled once on a machine."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from checkmate import DFGraph
from checkmate_solvers.local.arrays import state_of
from checkmate_solvers.local.entry import Entry, entry

__all__ = ["ANY_BUDGET", "is_loaded", "machine_code"]

ANY_BUDGET = 2**62
"""A budget with room for everything."""


@lru_cache(maxsize=1)
def machine_code() -> Entry:
    """The entry, called once: what follows takes no time for loading."""
    work = entry()
    pair = DFGraph.from_nodes(cost=[1, 1], size=[1, 1], deps=[[], [0]])
    work(state_of(pair, fixed_order=False, seed=0), np.arange(2), ANY_BUDGET, 1, 1, 1.0, 1)
    return work


def is_loaded() -> bool:
    """Whether :func:`machine_code` returns at once."""
    return bool(machine_code.cache_info().currsize)

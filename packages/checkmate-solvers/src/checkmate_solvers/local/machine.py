"""The machine code of the local search: loaded once in a process, compiled once on a machine."""

from __future__ import annotations

import logging
from functools import lru_cache
from threading import Timer

import numpy as np

from checkmate import DFGraph
from checkmate_solvers.local.arrays import state_of
from checkmate_solvers.local.entry import Entry, entry

__all__ = ["ANY_BUDGET", "is_loaded", "machine_code"]

ANY_BUDGET = 2**62
"""A budget with room for everything."""
_LOADED_S = 3.0
"""Who takes longer to get ready is compiling, not loading."""
_log = logging.getLogger(__name__)


@lru_cache(maxsize=1)
def machine_code() -> Entry:
    """The entry, called once: what follows takes no time for loading. A warning says so if it compiles."""
    work = entry()
    message = "compiling the local search: about half a minute, once on this machine"
    notice = Timer(_LOADED_S, _log.warning, [message])
    notice.daemon = True
    notice.start()
    try:
        _call(work)
    except OSError as error:  # it is compiled, but the disk is full
        _log.warning("the machine code could not be kept: %s", error)
        _call(work)
    finally:
        notice.cancel()
    return work


def is_loaded() -> bool:
    """Whether :func:`machine_code` returns at once."""
    return bool(machine_code.cache_info().currsize)


def _call(work: Entry) -> None:
    pair = DFGraph.from_nodes(cost=[1, 1], size=[1, 1], deps=[[], [0]])
    work(state_of(pair, fixed_order=False, seed=0), np.arange(2), ANY_BUDGET, 1, 1, 1.0, 1)

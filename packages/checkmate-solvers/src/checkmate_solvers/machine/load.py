"""Reading a sequence into the arrays, and out of them."""

from __future__ import annotations

import numpy as np

from checkmate_solvers.machine.arrays import (
    BEST,
    BEST_LENGTH,
    BLOCKS,
    COST,
    FREE,
    LOGGED,
    REPEATED,
    SHIFT,
    Ints,
    State,
)
from checkmate_solvers.machine.jit import compiled
from checkmate_solvers.machine.sequence import add_bytes, insert, last_counted, latest, lay_out

__all__ = ["keep_best", "load"]


@compiled
def load(s: State, sequence: Ints) -> None:
    """Make the arrays hold this sequence, which must be valid; the log is empty afterwards."""
    end = len(s.head) - 1
    s.head[:], s.tail[:], s.runs[:] = -1, -1, 0
    s.counts[REPEATED], s.counts[LOGGED], s.counts[BLOCKS] = 0, 0, 1
    s.totals[COST] = 0.0
    s.free[:] = np.arange(len(s.free) - 1, -1, -1)
    s.counts[FREE] = len(s.free) - 1
    s.filled[0], s.add[0], s.at[0], s.mem[0] = 1, 0, 0, 0
    s.op[0], s.pos[0], s.prev[0], s.next[0] = end, 0, -1, -1
    s.head[end], s.tail[end], s.runs[end] = 0, 0, 1
    for v in sequence:
        insert(s, v, 0)
        s.counts[LOGGED] = 0
    for i in range(s.reads_at[end], s.reads_at[end + 1]):
        t = s.reads[i]
        source, k = latest(s, s.producer[t], s.pos[0]), s.place[t]
        add_bytes(s, last_counted(s, s.death[source, k], t) + 1, s.pos[0], s.size[t])
        s.death[source, k] = 0
    lay_out(s)


@compiled
def keep_best(s: State) -> None:
    """Remember this sequence as the cheapest, the end left out."""
    n = 0
    for block in range(s.counts[BLOCKS]):
        for p in range(block << SHIFT, (block << SHIFT) + s.filled[block]):
            s.best[n] = s.op[s.at[p]]
            n += 1
    s.counts[BEST_LENGTH], s.totals[BEST] = n - 1, s.totals[COST]

"""Editing a sequence: insert or remove one compute, and know its memory at once.

A copy made by node x and last read by node d is resident at the positions of x to d; if the op of d reuses
it, it does not count at the position of d. So an edit adds or takes the bytes of a few copies over stretches
of the sequence, and nothing else; with n nodes it costs about √n.
Every edit is logged, and undone by the opposite one.

The base bytes (graph inputs, fixed size) are not counted here: budgets are bytes beside them.
"""

from __future__ import annotations

import numpy as np

from checkmate_solvers.machine.arrays import (
    BEST,
    BEST_LENGTH,
    BLOCK,
    BLOCKS,
    COST,
    FILLED,
    FREE,
    INSIDE,
    LOGGED,
    REPEATED,
    SHIFT,
    Ints,
    State,
)
from checkmate_solvers.machine.jit import compiled

__all__ = [
    "exceeds",
    "first_read",
    "following",
    "insert",
    "keep_best",
    "latest",
    "lay_out",
    "load",
    "peak",
    "preceding",
    "remove",
    "undo",
]

_NOTHING = -(2**62)


@compiled
def following(s: State, position: int) -> int:
    """The next position with a node, of all positions if this one is −1; there must be one."""
    block = position >> SHIFT
    if position >= 0 and (position & INSIDE) + 1 < s.filled[block]:
        return position + 1
    block += 1
    while s.filled[block] == 0:
        block += 1
    return block << SHIFT


@compiled
def preceding(s: State, position: int) -> int:
    """The position with a node before this one; −1 if there is none."""
    if position & INSIDE:
        return position - 1
    block = (position >> SHIFT) - 1
    while block >= 0 and s.filled[block] == 0:
        block -= 1
    return (block << SHIFT) + s.filled[block] - 1 if block >= 0 else -1


@compiled
def peak(s: State) -> int:
    """The most memory of any node."""
    return int(s.most[: s.counts[BLOCKS]].max())


@compiled
def exceeds(s: State, first: int, last: int, size: int) -> bool:
    """Whether any node at positions ``first`` to ``last`` has more memory than ``size``."""
    for block in range(first >> SHIFT, (last >> SHIFT) + 1):
        if s.most[block] > size:
            corner, left = block << SHIFT, size - s.add[block]
            for p in range(max(first, corner), min(last + 1, corner + s.filled[block])):
                if s.mem[p] > left:
                    return True
    return False


@compiled
def _add_bytes(s: State, first: int, last: int, size: int) -> None:
    """Add bytes to the memory at positions ``first`` to ``last``."""
    if size == 0 or last < first:
        return
    for block in range(first >> SHIFT, (last >> SHIFT) + 1):
        corner = block << SHIFT
        end = corner + s.filled[block]
        start, stop = max(first, corner), min(last + 1, end)
        if start == corner and stop == end:
            s.add[block] += size
            s.most[block] += size
        elif start < stop:
            most = _NOTHING
            for p in range(start, stop):
                s.mem[p] += size
                most = max(most, s.mem[p])
            most += s.add[block]
            if size > 0:
                s.most[block] = max(s.most[block], most)
            elif most - size == s.most[block]:
                _refresh(s, block)


@compiled
def _refresh(s: State, block: int) -> None:
    """Find the most memory of a block again."""
    most, corner = _NOTHING, block << SHIFT
    for i in range(s.filled[block]):
        most = max(most, s.mem[corner + i])
    s.most[block] = most + s.add[block]


@compiled
def latest(s: State, v: int, position: int) -> int:
    """The last node of op ``v`` before a position; −1 if there is none."""
    node = int(s.tail[v])
    while node >= 0 and s.pos[node] >= position:
        node = int(s.prev[node])
    return node


@compiled
def _last_counted(s: State, node: int, t: int) -> int:
    """The last position at which a copy of tensor ``t`` counts that ``node`` is the last to read."""
    v = s.op[node]
    for i in range(s.reuses_at[v], s.reuses_at[v + 1]):
        if s.reuses[i] == t:
            return int(s.pos[node]) - 1
    return int(s.pos[node])


@compiled
def _end_copy(s: State, source: int, t: int, node: int) -> None:
    """Let ``node`` be the last that reads the copy of tensor ``t`` made by ``source``."""
    k = s.place[t]
    old, new = _last_counted(s, s.death[source, k], t), _last_counted(s, node, t)
    s.death[source, k] = node
    _add_bytes(s, old + 1, new, s.size[t])
    _add_bytes(s, new + 1, old, -s.size[t])


@compiled
def _last_read(s: State, t: int, source: int, before: int) -> int:
    """The last node before a position that reads the copy of tensor ``t`` of a node; else that node."""
    last = source
    for i in range(s.users_at[t], s.users_at[t + 1]):
        node = latest(s, s.users[i], before)
        if node >= 0 and s.pos[node] > s.pos[last]:
            last = node
    return last


@compiled
def first_read(s: State, t: int, after: int) -> int:
    """The first node after a position that reads tensor ``t``; −1 if there is none."""
    first, where = -1, 0
    for i in range(s.users_at[t], s.users_at[t + 1]):
        node = s.tail[s.users[i]]
        while node >= 0 and s.pos[node] > after:
            if first < 0 or s.pos[node] < where:
                first, where = node, s.pos[node]
            node = s.prev[node]
    return first


@compiled
def insert(s: State, v: int, successor: int) -> int:
    """Compute op ``v`` just before a node; its inputs must have been made before. Returns the new node."""
    if s.filled[s.pos[successor] >> SHIFT] == BLOCK:
        lay_out(s)
    here = s.pos[successor]
    block, u = here >> SHIFT, s.op[successor]
    carried = s.mem[here] - s.workspace[u] - s.made[u]
    for i in range(s.reuses_at[u], s.reuses_at[u + 1]):
        t = s.reuses[i]
        if s.death[latest(s, s.producer[t], here), s.place[t]] == successor:
            carried += s.size[t]
    for p in range((block << SHIFT) + s.filled[block], here, -1):
        s.at[p], s.mem[p] = s.at[p - 1], s.mem[p - 1]
        s.pos[s.at[p]] = p
    s.counts[FREE] -= 1
    node = int(s.free[s.counts[FREE]])
    s.filled[block] += 1
    s.at[here], s.op[node], s.pos[node] = node, v, here
    s.mem[here] = carried + s.workspace[v]
    _link(s, node)
    _copies_appear(s, node)
    s.most[block] = max(s.most[block], s.mem[here] + s.add[block])
    for i in range(s.reads_at[v], s.reads_at[v + 1]):
        t = s.reads[i]
        source = latest(s, s.producer[t], here)
        if s.pos[s.death[source, s.place[t]]] < here:
            _end_copy(s, source, t, node)
    _note(s, node, -1)
    return node


@compiled
def _link(s: State, node: int) -> None:
    """Enter a node among those of its op."""
    v = s.op[node]
    after, before = -1, s.tail[v]
    while before >= 0 and s.pos[before] >= s.pos[node]:
        after, before = before, s.prev[before]
    s.prev[node] = before
    if before < 0:
        s.head[v] = node
    if after < 0:
        s.tail[v] = node
    else:
        s.prev[after] = node
    s.totals[COST] += s.cost[v]
    s.runs[v] += 1
    if s.runs[v] == 2:
        s.rank[v] = s.counts[REPEATED]
        s.repeated[s.rank[v]] = v
        s.counts[REPEATED] += 1


@compiled
def _copies_appear(s: State, node: int) -> None:
    """Turn later reads of the previous copies into reads of this node's; its own memory has no block yet."""
    v, here, before = s.op[node], s.pos[node], s.prev[node]
    for i in range(s.makes_at[v], s.makes_at[v + 1]):
        t, k = s.makes[i], i - s.makes_at[v]
        s.death[node, k] = node
        if before >= 0 and s.pos[s.death[before, k]] > here:
            s.death[node, k] = s.death[before, k]
            s.death[before, k] = _last_read(s, t, before, here)
            _add_bytes(s, _last_counted(s, s.death[before, k], t) + 1, here - 1, -s.size[t])
        else:
            s.mem[here] += s.size[t]


@compiled
def remove(s: State, node: int) -> None:
    """Remove a compute; if its outputs are read, an earlier compute of its op must be there."""
    v, here, before = s.op[node], s.pos[node], s.prev[node]
    successor = s.at[following(s, here)]
    _unlink(s, node)
    for i in range(s.reads_at[v], s.reads_at[v + 1]):
        t = s.reads[i]
        source = latest(s, s.producer[t], here)
        if s.death[source, s.place[t]] == node:
            _end_copy(s, source, t, _last_read(s, t, source, here))
    for i in range(s.makes_at[v], s.makes_at[v + 1]):
        t, k = s.makes[i], i - s.makes_at[v]
        death = s.death[node, k]
        if death != node:
            _add_bytes(s, _last_counted(s, s.death[before, k], t) + 1, here - 1, s.size[t])
            s.death[before, k] = death
    block = here >> SHIFT
    fullest = s.mem[here] + s.add[block] == s.most[block]
    s.filled[block] -= 1
    for p in range(here, (block << SHIFT) + s.filled[block]):
        s.at[p], s.mem[p] = s.at[p + 1], s.mem[p + 1]
        s.pos[s.at[p]] = p
    if fullest:
        _refresh(s, block)
    s.free[s.counts[FREE]] = node
    s.counts[FREE] += 1
    _note(s, v, successor)


@compiled
def _unlink(s: State, node: int) -> None:
    """Forget a node among those of its op."""
    v, after, x = s.op[node], -1, s.tail[s.op[node]]
    while x != node:
        after, x = x, s.prev[x]
    if s.prev[node] < 0:
        s.head[v] = after
    if after < 0:
        s.tail[v] = s.prev[node]
    else:
        s.prev[after] = s.prev[node]
    s.totals[COST] -= s.cost[v]
    s.runs[v] -= 1
    if s.runs[v] == 1:
        s.counts[REPEATED] -= 1
        moved = s.repeated[s.counts[REPEATED]]
        s.repeated[s.rank[v]], s.rank[moved] = moved, s.rank[v]


@compiled
def _note(s: State, what: int, successor: int) -> None:
    s.log[s.counts[LOGGED], 0] = what
    s.log[s.counts[LOGGED], 1] = successor
    s.counts[LOGGED] += 1


@compiled
def undo(s: State, logged: int) -> None:
    """Undo the edits after the first ``logged``; nodes get their old ids back, as the stack is restored."""
    for entry in range(s.counts[LOGGED] - 1, logged - 1, -1):
        s.counts[LOGGED] = entry
        what, successor = s.log[entry, 0], s.log[entry, 1]
        if successor < 0:
            remove(s, what)
        else:
            insert(s, what, successor)
    s.counts[LOGGED] = logged


@compiled
def lay_out(s: State) -> None:
    """Give every block the same number of nodes again: move all nodes to the front, then apart."""
    n = 0
    for block in range(s.counts[BLOCKS]):
        for p in range(block << SHIFT, (block << SHIFT) + s.filled[block]):
            s.at[n], s.mem[n] = s.at[p], s.mem[p] + s.add[block]
            n += 1
    s.counts[BLOCKS] = (n + FILLED - 1) // FILLED
    for block in range(s.counts[BLOCKS] - 1, -1, -1):
        s.filled[block], s.add[block] = min(FILLED, n - block * FILLED), 0
        for i in range(s.filled[block] - 1, -1, -1):
            p = (block << SHIFT) + i
            s.at[p], s.mem[p] = s.at[block * FILLED + i], s.mem[block * FILLED + i]
            s.pos[s.at[p]] = p
        _refresh(s, block)


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
    s.op[0], s.pos[0], s.prev[0] = end, 0, -1
    s.head[end], s.tail[end], s.runs[end] = 0, 0, 1
    for v in sequence:
        insert(s, v, 0)
        s.counts[LOGGED] = 0
    for i in range(s.reads_at[end], s.reads_at[end + 1]):
        t = s.reads[i]
        _end_copy(s, latest(s, s.producer[t], s.pos[0]), t, 0)
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

"""Freeing bytes at a position: drop a copy that idles there and compute it again later, or read it earlier.

*Drop*: the copy made at x idles at position p and is read next at y. Run its op again just before y, together
with the ops of all inputs that are gone by then (the closure); or earlier, just after the stretch over the
budget around p. If nothing reads the old copies, their compute goes: the drop was a postponement. An op of
the closure costs nothing either if its earlier compute goes, too, or if its later one does, because the
budget has room to hold its outputs until then.

*Advance*: the only node that still reads the copy after p moves to before p, so that the copy ends there.
"""

from __future__ import annotations

import numpy as np

from checkmate_solvers.machine.arrays import FREE, LITTLE, LOGGED, MARK, SHIFT, State
from checkmate_solvers.machine.jit import compiled, draw
from checkmate_solvers.machine.sequence import (
    exceeds,
    first_read,
    following,
    insert,
    latest,
    preceding,
    remove,
    undo,
)

__all__ = ["discard", "has_room", "idle", "make_room", "move"]

_DROP, _ADVANCE = 1, 2
_EARLY = 0.2
"""Probability that a dropped copy comes back earlier than just before its next read."""
_REACH = 0.1
"""Probability of keeping a copy alive although it exceeds the budget."""


@compiled
def has_room(s: State) -> bool:
    """Whether a closure of any size can still be inserted, all nodes removed, and both noted in the log."""
    n = len(s.head)
    return bool(s.counts[FREE] > n and s.counts[LOGGED] + n + len(s.op) < len(s.log))


@compiled
def idle(s: State, node: int) -> bool:
    """Whether no node reads the outputs of this one, and it may go."""
    v = s.op[node]
    for k in range(s.makes_at[v + 1] - s.makes_at[v]):
        if s.death[node, k] != node:
            return False
    return not s.must[v] or s.prev[node] >= 0


@compiled
def discard(s: State, node: int) -> None:
    """Remove a node, and all nodes that only it needed."""
    n, s.stack[0] = 1, node
    while n > 0:
        n -= 1
        x = s.stack[n]
        v, here, known = s.op[x], s.pos[x], n
        remove(s, x)
        for i in range(s.reads_at[v], s.reads_at[v + 1]):
            t = s.reads[i]
            source = latest(s, s.producer[t], here)
            fresh = s.death[source, s.place[t]] == source
            for j in range(known, n):
                fresh = fresh and s.stack[j] != source
            if fresh and idle(s, source):
                s.stack[n] = source
                n += 1


@compiled
def move(s: State, node: int, y: int) -> None:
    """Move a node to just before node y, unless a node in between reads it."""
    logged = s.counts[LOGGED]
    moved = insert(s, s.op[node], y)
    if s.pos[moved] > s.pos[node] and not idle(s, node):
        undo(s, logged)
        return
    remove(s, node)
    _discard_previous(s, moved)


@compiled
def _discard_previous(s: State, node: int) -> None:
    """Remove the node of the same op before this one, if nothing reads it any more."""
    before = s.prev[node]
    if before >= 0 and idle(s, before):
        discard(s, before)


@compiled
def _closure(
    s: State, v: int, y: int, budget: int, limit: float, goes: bool, thrifty: bool
) -> tuple[int, float]:
    """Write the ops to run just before node y so that v can run there to ``found``; return number and cost.

    The number is 0 if that costs more than ``limit``. With ``goes``, the previous node of v goes then; with
    ``thrifty``, ops whose previous node goes then, too, or whose next node may, cost nothing.
    """
    s.counts[MARK] += 2  # the last mark: the previous node goes; the one before it: that stays
    mark, here = s.counts[MARK] - 1, s.pos[y]
    s.found[0], s.marks[v] = v, mark + goes
    n, done, cost = 1, 0, 0.0 if goes else s.cost[v]
    if thrifty and _next(s, v, y, budget) >= 0:
        cost -= s.cost[v]
    while done < n:
        u = s.found[done]
        done += 1
        for i in range(s.reads_at[u], s.reads_at[u + 1]):
            t = s.reads[i]
            w = s.producer[t]
            if s.marks[w] >= mark or s.once[w] or s.size[t] == 0:
                continue
            x = latest(s, w, here)
            death = s.pos[s.death[x, s.place[t]]]
            if death >= here or not exceeds(s, death + 1, preceding(s, here), budget - s.size[t]):
                continue
            if draw(s.random) < _REACH:
                continue
            s.found[n] = w
            n += 1
            added = _charge(s, x, y, budget, thrifty)
            cost += added
            if added > 0.0 and cost > limit:
                return 0, cost
    return n, cost


@compiled
def _charge(s: State, x: int, y: int, budget: int, thrifty: bool) -> float:
    """Enter the op of node x in the closure, whether x goes as well; return the cost that this adds."""
    v = s.op[x]
    s.marks[v] = s.counts[MARK] - 1
    if thrifty and _goes(s, x, s.pos[y]):
        s.marks[v] += 1
        return 0.0
    return 0.0 if thrifty and _next(s, v, y, budget) >= 0 else float(s.cost[v])


@compiled
def _goes(s: State, x: int, here: int) -> bool:
    """Whether only nodes that go read what a node makes, and it may go itself."""
    v = s.op[x]
    for i in range(s.makes_at[v], s.makes_at[v + 1]):
        reader = s.death[x, i - s.makes_at[v]]
        u = s.op[reader]
        if reader != x and (
            s.marks[u] != s.counts[MARK]
            or latest(s, u, here) != reader
            or first_read(s, s.makes[i], s.pos[x]) != reader
        ):
            return False
    return not s.must[v] or s.prev[x] >= 0


@compiled
def _next(s: State, v: int, y: int, budget: int) -> int:
    """The first node of an op after node y, if its outputs may as well be held from there on; else −1."""
    here, node, x = s.pos[y], -1, s.tail[v]
    while x >= 0 and s.pos[x] > here:
        node, x = x, s.prev[x]
    if node < 0 or x < 0:
        return -1
    there = s.pos[node]
    for i in range(s.makes_at[v], s.makes_at[v + 1]):
        k = i - s.makes_at[v]
        start, room = max(here, s.pos[s.death[x, k]] + 1), budget - s.size[s.makes[i]]
        if s.death[node, k] != node and start < there and exceeds(s, start, preceding(s, there), room):
            return -1
    return int(node)


@compiled
def _drop(s: State, v: int, y: int, budget: int, thrifty: bool) -> None:
    """Run op v and its closure just before node y, and remove nodes that are needless then."""
    n, _cost = _closure(s, v, y, budget, np.inf, False, False)
    s.found[:n].sort()
    for i in range(n):
        insert(s, s.found[i], y)
    for i in range(n):
        later = _next(s, s.found[i], y, budget) if thrifty else -1
        if later >= 0:
            discard(s, later)
    for i in range(n):
        _discard_previous(s, latest(s, s.found[i], s.pos[y]))


@compiled
def _return(s: State, t: int, p: int, last: int) -> int:
    """The node before which a copy of tensor t that idles at p comes back; −1 if it is read at p.

    It is the next read or, at times, the node just after the stretch up to ``last``.
    """
    y = first_read(s, t, p - 1)
    if y < 0 or s.pos[y] == p:
        return -1
    return int(s.at[following(s, last)]) if last < s.pos[y] and draw(s.random) < _EARLY else y


@compiled
def _relief(s: State, node: int, y: int, p: int) -> int:
    """Bytes fewer at p if a later node moves to just before node y, at or before p; 0 if it can't.

    It can't move to before the first run of its op, if that has to stay the first.
    """
    v = s.op[node]
    if v == len(s.head) - 1 or (s.must[v] and s.pos[s.head[v]] >= s.pos[y]):
        return 0
    bytes_ = -int(s.made[v])
    for i in range(s.reads_at[v], s.reads_at[v + 1]):
        t = s.reads[i]
        source = latest(s, s.producer[t], s.pos[y])
        if source < 0:
            return 0
        if s.death[source, s.place[t]] == node and first_read(s, t, p - 1) == node:
            bytes_ += s.size[t]
    return max(bytes_, 0)


@compiled
def make_room(s: State, p: int, excess: int, budget: int, samples: int, limit: float) -> bool:
    """Free bytes at position p: do the one of some random drops and advances with the least cost per byte.

    Args:
        s: the sequence.
        p: the position.
        excess: bytes over the budget there.
        budget: bytes; all positions around p that exceed it count.
        samples: how many to compare.
        limit: most that it may cost; if that is finite, computes that a drop makes needless are counted.

    Returns:
        False if none was found.
    """
    thrifty = limit < np.inf
    first, last = _stretch(s, p, budget)
    kind, what, where, least, seen = 0, 0, 0, np.inf, 0
    i, stride = int(draw(s.random) * len(s.lots)), 1 + int(draw(s.random) * (len(s.lots) - 1))
    for _ in range(min(len(s.lots), 1) * (24 + 16 * samples)):
        i += stride - len(s.lots) * (i + stride >= len(s.lots))
        t = s.lots[i]
        x = _idling(s, t, p)
        y = _return(s, t, p, last) if x >= 0 else -1
        if y < 0:
            continue
        seen += 1
        freed, goes = _dropped(s, x, p, y)
        if freed > 0:
            worth = _worth(s, min(freed, excess), max(first, s.pos[x]), min(last, s.pos[y]))
            most = min(limit, least * worth - s.totals[LITTLE])
            n, cost = _closure(s, s.op[x], y, budget, most, goes, thrifty)
            score = (cost + s.totals[LITTLE]) / worth
            if n > 0 and score < least:
                kind, what, where, least = _DROP, s.op[x], y, score
        if y == s.death[x, s.place[t]]:
            goal = s.at[p] if draw(s.random) < 0.5 or s.pos[x] >= first else s.at[first]
            freed = _relief(s, y, goal, p)
            if freed > 0:
                worth = _worth(s, min(freed, excess), s.pos[goal], min(last, s.pos[y]))
                score = s.totals[LITTLE] / worth
                if score < least:
                    kind, what, where, least = _ADVANCE, y, goal, score
        if seen >= samples:
            break
    if kind == _DROP:
        _drop(s, what, where, budget, thrifty)
    elif kind == _ADVANCE:
        move(s, what, where)
    return kind != 0


@compiled
def _stretch(s: State, p: int, budget: int) -> tuple[int, int]:
    """The first and the last position of the stretch around p in which every node is over the budget."""
    first, before, last = p, preceding(s, p), p
    while before >= 0 and s.mem[before] + s.add[before >> SHIFT] > budget:
        first, before = before, preceding(s, before)
    while s.mem[last] + s.add[last >> SHIFT] > budget and s.at[last] != s.tail[len(s.head) - 1]:
        last = following(s, last)
    return first, last


@compiled
def _idling(s: State, t: int, p: int) -> int:
    """The node whose copy of tensor t idles at position p; −1, mostly after two looks, if there is none."""
    v, k = s.producer[t], s.place[t]
    if s.pos[s.head[v]] >= p or s.pos[s.death[s.tail[v], k]] <= p:
        return -1
    node = latest(s, v, p)
    return node if node >= 0 and s.pos[s.death[node, k]] > p else -1


@compiled
def _dropped(s: State, x: int, p: int, y: int) -> tuple[int, bool]:
    """Bytes fewer at p if node x's copies come back just before node y, 0 if they can't; whether x goes."""
    v, freed, unread = s.op[x], 0, True
    for i in range(s.makes_at[v], s.makes_at[v + 1]):
        t = s.makes[i]
        death = s.pos[s.death[x, i - s.makes_at[v]]]
        if death <= s.pos[x]:
            continue
        first = first_read(s, t, s.pos[x])
        unread = unread and s.pos[first] >= s.pos[y]
        if death > p:
            if s.pos[first] < p:
                first = first_read(s, t, p - 1)
            if s.pos[first] >= s.pos[y]:
                freed += s.size[t]
    goes = unread and (not s.must[v] or s.prev[x] >= 0)
    return (0 if s.once[v] and not goes else freed), goes


@compiled
def _worth(s: State, freed: int, first: int, last: int) -> float:
    """Bytes times positions, with some noise; the lowest cost for each wins."""
    return float(freed) * float(last - first + 1) / (0.7 + 0.6 * draw(s.random))

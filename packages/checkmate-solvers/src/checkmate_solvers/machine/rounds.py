"""Ruin and recreate, with annealing: one round removes computes, frees bytes again, and is kept or undone.

The sequence is within the budget before and after each round. A round may raise the cost by −T · ln(u), with
u uniform in (0, 1) and T the temperature: Metropolis's rule, its threshold drawn first, so that hopeless
rounds stop early.
"""

from __future__ import annotations

import math

import numpy as np

from checkmate_solvers.machine.arrays import BEST, BLOCKS, COST, LOGGED, REPEATED, SHIFT, TEMPERATURE, State
from checkmate_solvers.machine.drops import discard, has_room, make_room, move
from checkmate_solvers.machine.jit import compiled, draw
from checkmate_solvers.machine.sequence import first_read, following, keep_best, latest, peak, preceding, undo

__all__ = ["repair", "run_rounds", "trim"]

_TINY = 1e-9
_WARMTH, _LEAST_WARMTH = 0.3, 0.02
"""Temperature of a whole repair: relative to the bytes over the budget, plus a share of the budget."""
_KICKS, _KICKING = 0.05, 0.3
"""Probability that a step of a whole repair is kept whatever it does, in this share of the calls."""
_COLD_KICKS = 0.1
"""The same probability in a round, whose repair is cold."""
_CAREFUL, _MANY = 0.15, 8
"""Probability that a round compares more ways to free bytes, and by which factor."""


@compiled
def _fullest(s: State, budget: int) -> int:
    """The position with the most memory; at times that of another block which is over the budget."""
    block = int(s.most[: s.counts[BLOCKS]].argmax())
    if draw(s.random) < 0.3:
        other = int(draw(s.random) * s.counts[BLOCKS])
        block = other if s.most[other] > budget else block
    corner = block << SHIFT
    return corner + int(s.mem[corner : corner + s.filled[block]].argmax())


@compiled
def _overflow(s: State, budget: int) -> float:
    """Bytes over the budget, summed over all nodes."""
    area = 0.0
    for block in range(s.counts[BLOCKS]):
        if s.most[block] > budget:
            added = s.add[block] - budget
            for p in range(block << SHIFT, (block << SHIFT) + s.filled[block]):
                area += float(max(s.mem[p] + added, 0))
    return area


@compiled
def repair(s: State, budget: int, steps: int, samples: int) -> bool:
    """Free bytes until all is within the budget, whatever that costs; False if that takes more steps.

    The bytes over the budget, summed over all nodes, are treated as an energy: by Metropolis's rule, a step
    may add to them. Near the least budget, nearly every way down leads over such steps.
    """
    kicks = s.totals[TEMPERATURE] * _KICKS if draw(s.random) < _KICKING else 0.0
    return _free(s, budget, np.inf, steps, samples, s.totals[TEMPERATURE], kicks)


@compiled
def _free(
    s: State, budget: int, most_cost: float, steps: int, samples: int, warmth: float, kicks: float
) -> bool:
    """Free bytes at the fullest nodes, one after the other; False if that fails or costs too much."""
    area = _overflow(s, budget)
    for _ in range(steps):
        p = _fullest(s, budget)
        excess = s.mem[p] + s.add[p >> SHIFT] - budget
        if excess <= 0:
            return True
        limit = most_cost - s.totals[COST]
        if limit < 0.0 or not has_room(s):
            return False
        logged = s.counts[LOGGED]
        if not make_room(s, p, excess, budget, samples, limit):
            return False
        left = _overflow(s, budget)
        heat = warmth * (_WARMTH * area + _LEAST_WARMTH * budget)
        if left < area - heat * math.log(draw(s.random)) or draw(s.random) < kicks:
            area = left
        else:
            undo(s, logged)
    return peak(s) <= budget


@compiled
def _again(s: State) -> int:
    """A random node that is not the first of its op; there must be one."""
    v = s.repeated[int(draw(s.random) * s.counts[REPEATED])]
    node = int(s.tail[v])
    for _ in range(int(draw(s.random) * (s.runs[v] - 1))):
        node = int(s.prev[node])
    return node


@compiled
def try_without(s: State, node: int, budget: int) -> bool:
    """Remove a node that is not the first of its op, if the rest then still is within the budget."""
    logged = s.counts[LOGGED]
    discard(s, node)
    if peak(s) <= budget:
        return True
    undo(s, logged)
    return False


@compiled
def trim(s: State, budget: int) -> None:
    """Remove repeated computes, in random order, until the budget allows no further removal."""
    going = True
    while going and s.counts[REPEATED] > 0 and has_room(s):
        going = False
        start = int(draw(s.random) * s.counts[REPEATED])
        for i in range(s.counts[REPEATED]):
            if s.counts[REPEATED] == 0 or not has_room(s):
                break
            node = s.tail[s.repeated[(start + i) % s.counts[REPEATED]]]
            while node >= 0 and s.prev[node] >= 0:
                if try_without(s, node, budget):
                    going = True
                    break
                node = s.prev[node]


@compiled
def _ruin_together(s: State, many: int) -> None:
    """Remove a random repeated compute, of which there must be one, and others just before it."""
    node = _again(s)
    successor = s.at[following(s, s.pos[node])]
    discard(s, node)
    misses = 0
    while many > 1 and misses < 3:
        p = preceding(s, s.pos[successor])
        if p < 0:
            break
        node = s.at[p]
        if s.prev[node] >= 0 and s.op[node] != len(s.head) - 1:
            discard(s, node)
            many -= 1
        else:
            successor = node
            misses += 1


@compiled
def _ruin_op(s: State) -> None:
    """Remove all computes except the first of the most expensive of three random repeated ops."""
    v = -1
    for _ in range(3):
        w = s.repeated[int(draw(s.random) * s.counts[REPEATED])]
        if v < 0 or s.cost[w] > s.cost[v]:
            v = w
    while s.runs[v] > 1:
        discard(s, s.tail[v])


@compiled
def _crowd(s: State, budget: int, most_cost: float, samples: int) -> None:
    """Free bytes at a random position that is nearly full: this may make a drop elsewhere needless."""
    block = int(draw(s.random) * s.counts[BLOCKS])
    if s.filled[block] == 0:
        return
    p = (block << SHIFT) + int(draw(s.random) * s.filled[block])
    held = s.mem[p] + s.add[block]
    if held > 0.8 * budget:
        make_room(s, p, held, budget, samples, most_cost - s.totals[COST])


@compiled
def _shift(s: State) -> None:
    """Move a random compute to another place between its inputs and its readers, mostly next to one."""
    if s.counts[REPEATED] > 0 and draw(s.random) < 0.5:
        node = _again(s)
    else:
        block = int(draw(s.random) * s.counts[BLOCKS])
        if s.filled[block] == 0:
            return
        node = s.at[(block << SHIFT) + int(draw(s.random) * s.filled[block])]
    v = s.op[node]
    if v == len(s.head) - 1 or (s.must[v] and s.prev[node] < 0):
        return
    low, high = _span(s, node)
    low = max(low, s.pos[s.head[v]]) if s.must[v] else low
    if high < 0:
        return
    place = low if draw(s.random) < 0.4 else low + int(draw(s.random) * (high - low))
    successor = s.at[high] if draw(s.random) < 0.3 else s.at[following(s, place)]
    if successor != node:
        move(s, node, successor)


@compiled
def _span(s: State, node: int) -> tuple[int, int]:
    """Positions of the last node that a node reads, and of the first that reads it; −1 if there is none."""
    v, low, high = s.op[node], -1, -1
    for i in range(s.reads_at[v], s.reads_at[v + 1]):
        low = max(low, s.pos[latest(s, s.producer[s.reads[i]], s.pos[node])])
    for i in range(s.makes_at[v], s.makes_at[v + 1]):
        if s.death[node, i - s.makes_at[v]] != node:
            reader = s.pos[first_read(s, s.makes[i], s.pos[node])]
            high = reader if high < 0 else min(high, reader)
    return low, high


@compiled
def _change(s: State, kind: float, budget: int, most_cost: float, samples: int) -> None:
    """Begin a round: make the change that the random number ``kind`` selects."""
    if kind < 0.2:
        _shift(s)
    elif kind < 0.38 or s.counts[REPEATED] == 0:
        _crowd(s, budget, most_cost, samples)
    elif kind < 0.68:
        _ruin_together(s, 1 + int(8.0 * draw(s.random) ** 2))
    elif kind < 0.83:
        _ruin_op(s)
    else:
        for _ in range(1 + int(4.0 * draw(s.random) ** 2)):
            if s.counts[REPEATED] > 0:
                discard(s, _again(s))


@compiled
def run_rounds(s: State, budget: int, rounds: int, cooling: float, samples: int) -> int:
    """Run rounds; return how many found a new best."""
    better = 0
    for _ in range(rounds):
        s.counts[LOGGED] = 0
        s.totals[TEMPERATURE] *= cooling
        start = s.totals[COST]
        most_cost = start - s.totals[TEMPERATURE] * math.log(draw(s.random))
        kind = draw(s.random)
        _change(s, kind, budget, most_cost, samples)
        if s.counts[LOGGED] == 0:
            continue
        many = _MANY * samples if draw(s.random) < _CAREFUL else 1 + int(draw(s.random) * samples)
        fine = _free(s, budget, most_cost, 64, many, 0.0, _COLD_KICKS)
        if fine:
            for _try in range(4 if kind >= 0.38 else 12):
                if s.counts[REPEATED] > 0 and has_room(s):
                    try_without(s, _again(s), budget)
        if fine and s.totals[COST] <= most_cost:
            if s.totals[COST] < s.totals[BEST] - _TINY * start:
                trim(s, budget)
                keep_best(s)
                better += 1
        else:
            undo(s, 0)
            s.totals[COST] = start
    return better

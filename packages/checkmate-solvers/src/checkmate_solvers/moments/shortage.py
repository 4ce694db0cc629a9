r"""Where a decision about some moments leaves too little room: a moment there may raise the bound.

Let ρ_o ≤ 1 be the share of op o that runs again after moment t, by a decision about t and others. If all
that ran as late as it may, a tensor T would be held at a later moment, before its last reader first runs, in
part

    1 − ρ_p(T)      and after it   max(0, max{ρ_o : o reads T} − ρ_p(T))      (p(T) makes T)

Moments that have less room than that, in base order, may raise the bound. How much is estimated by a minimum
cut in which an op costs what the decision does not pay yet: (1 − ρ_o) c_o. It knows nothing of what has to
run before the moment; but it takes a tenth of the time of a linear program, or less.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from checkmate import Problem
from checkmate.analysis import liveness, needed_ops, working_sets
from checkmate_solvers.moments.min_cut import CUT_COST, min_cut
from checkmate_solvers.moments.moment import Decision, Mask, Moment
from checkmate_solvers.search import Incumbent, sequence_of

__all__ = ["promising", "shortage"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    """How many moments are proposed (measured in ADR 29)."""

    parts: int = 12  # into which the order is cut, at most; in each, some ops without room get an estimate
    ops_per_part: int = 32  # of the graph, at least: small graphs have fewer parts
    estimates: int = 4  # in each part, at most, for the ops that lack most bytes
    share: float = 1 / 6  # of the remaining time, at most, for all estimates
    large: int = 8  # ops with the largest working sets, which are proposed without an estimate


_SETTINGS = _Settings()
_Shares = npt.NDArray[np.float64]


def promising(
    best: Incumbent, chosen: Sequence[int], decision: Decision, moment: Callable[[int], Moment]
) -> dict[int, float]:
    """Moments that may raise the bound of the chosen ones, and by how much; the most promising first.

    Three kinds come in turn: moments with the highest estimates; moments at which the decision's schedule is
    most over the budget; and moments with the largest working sets. Estimates say little of the last two
    kinds. If time is short, there are no estimates.

    Args:
        best: names the problem, and has the clock.
        chosen: the decided moments, by their ops, in base order.
        decision: the decision about the chosen moments.
        moment: the function from an op to its moment.
    """
    if decision.again is None:
        return {}
    graph = best.problem.graph
    after = np.minimum(np.cumsum(decision.again[::-1], axis=0)[::-1], 1.0)  # each of the moments
    at = np.maximum(np.searchsorted(chosen, np.arange(graph.n_ops), side="right") - 1, 0)
    short = np.array([shortage(best.problem, shares) for shares in after])[at, np.arange(graph.n_ops)]
    in_line = np.logical_and.reduce([moment(t).before | moment(t).after for t in chosen])  # in any order
    others = np.flatnonzero(in_line)
    sizes, rises, until = working_sets(graph), dict[int, float](), best.clock.deadline.part(_SETTINGS.share)
    n_parts = min(_SETTINGS.parts, 1 + graph.n_ops // _SETTINGS.ops_per_part)
    parts = np.array_split(others[short[others] > 0], n_parts)
    fullest = [
        part[np.argsort(-short[part], kind="stable")[: _SETTINGS.estimates]].tolist() for part in parts
    ]
    for v in itertools.chain.from_iterable(itertools.zip_longest(*fullest)):
        if v is not None and not until.passed and best.clock.has_time_for(CUT_COST):
            unpaid, enough = graph.costs * (1 - after[at[v]]), max(rises.values(), default=0.0) / 2
            rises[v] = min_cut(moment(v), costs=unpaid, enough=enough).recompute
    raising = sorted((v for v in rises if rises[v] > 0), key=lambda v: -rises[v])
    large = sorted(others.tolist(), key=lambda v: (short[v] <= 0, -sizes[v]))[: _SETTINGS.large]
    over = _overfull(best.problem, decision.keep)
    mixed = itertools.chain.from_iterable(itertools.zip_longest(raising, over, large))
    return {v: rises.get(v, 0.0) for v in mixed if v is not None and in_line[v]}


def shortage(problem: Problem, shares: _Shares) -> _Shares:
    """Bytes over the budget while each needed op first runs, in base order; negative where there is room.

    ``shares`` says how much of each op runs again, as late as it may. Both have the shape ``[n_ops]``.
    """
    graph, needed = problem.graph, needed_ops(problem.graph)
    maker, end = graph.producer, graph.n_ops
    made = np.append(needed, False)[maker]
    reader, read = graph.reads.rows, graph.reads.indices
    inner = needed[reader] & made[read]
    reader, read = reader[inner], read[inner]
    last, asked = maker.copy(), np.zeros(graph.n_tensors)
    np.maximum.at(last, read, reader)
    last[list(graph.outputs)] = end
    np.maximum.at(asked, read, shares[reader])
    remade = np.append(shares, 0.0)[maker]
    before, after = (1 - remade) * graph.sizes, np.maximum(asked - remade, 0.0) * graph.sizes
    changes = np.bincount(maker[made] + 1, before[made], end + 2)
    changes += np.bincount(last[made] + 1, (after - before)[made], end + 2)
    inputs = np.bincount(reader, before[read], end)
    user, used = graph.reuses.rows, graph.reuses.indices
    stays = made[used] & (last[used] > user)  # the working set of an op leaves out what it may reuse
    inputs = inputs - np.bincount(user[stays], before[used[stays]], end)
    held: _Shares = np.asarray(np.cumsum(changes), dtype=np.float64)[:end]
    return held - inputs + working_sets(graph) - problem.budget


def _overfull(problem: Problem, keep: Mapping[int, Mask]) -> list[int]:
    """Where the schedule of a decision exceeds the budget most: the fullest op of each part of the order."""
    sequence = sequence_of(problem.graph, keep)
    sizes, most = dict[int, int](), 0
    for v, size in zip(sequence, liveness(problem.graph, sequence).memory.tolist(), strict=True):
        most = max(most, size)
        if v not in sizes:  # the most since the last first run
            sizes[v], most = most, 0
    over = np.array(sorted(v for v in sizes if sizes[v] > problem.budget), dtype=np.int64)
    hills = [
        max(part.tolist(), key=sizes.__getitem__)
        for part in np.array_split(over, _SETTINGS.parts)
        if len(part)
    ]
    return sorted(hills, key=lambda v: -sizes[v])

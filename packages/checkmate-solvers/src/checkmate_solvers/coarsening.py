"""A coarser graph for local search: ops that mostly had better run together are one op, their *group*.

From the last op to the first, an op joins the group of its readers, and then runs as the first of it, where

- one group has all readers of its outputs, none of which is a graph output;
- its outputs take no fewer bytes than what the group makes, which then is the better one to keep, or few;
- it is next to the group in base order, or its outputs take no fewer bytes than what it reads, so that it
  may as well run later;
- the group holds few bytes more if it holds all that it reads until its end, as one op does.

A sequence of groups is a sequence of ops whose peak is at most as high. Groups take choices away, few of
which matter, and a search comes further in the same time: this is the multilevel idea of Walshaw, "Multilevel
refinement for combinatorial optimisation problems", Annals of Operations Research 131 (2004).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from checkmate import DFGraph, Op
from checkmate.analysis import needed_ops

__all__ = ["Coarse", "coarsened", "graph_of"]

_MOST = 64
"""Ops of a group, at most: looking at a group takes time in proportion."""


class Coarse(NamedTuple):
    """A coarser graph, and for each of its ops the ops of its group, in the order in which they run."""

    graph: DFGraph
    groups: list[list[int]]

    def expanded(self, sequence: Sequence[int]) -> list[int]:
        """A sequence of groups as one of ops."""
        return [v for group in sequence for v in self.groups[group]]


def coarsened(graph: DFGraph, few: int) -> Coarse:
    """Group the needed ops of a graph, where ``few`` bytes hardly matter.

    >>> graph = DFGraph.from_nodes(cost=[1] * 5, size=[4, 2, 2, 2, 1], deps=[[], [0], [1], [2], [0, 3]])
    >>> coarsened(graph, 1).groups
    [[0], [1], [2], [3, 4]]
    """
    needed = needed_ops(graph)
    end = np.arange(graph.n_ops)  # the last op of the group of each op: it makes what others read
    groups: dict[int, list[int]] = {}
    for v in np.flatnonzero(needed)[::-1].tolist():
        outputs = graph.ops[v].outputs
        readers = np.concatenate([graph.readers.row(t) for t in outputs])
        ends = set(end[readers[needed[readers]]].tolist())
        into = ends.pop() if len(ends) == 1 and not set(outputs).intersection(graph.outputs) else v
        if into != v and _joins(graph, v, groups[into], few):
            end[v] = into
            groups[into].insert(0, v)
        else:
            groups[v] = [v]
    chosen = [groups[last] for last in sorted(groups)]
    return Coarse(graph_of(graph, chosen), chosen)


def _bytes(graph: DFGraph, tensors: Iterable[int]) -> int:
    """Bytes of these tensors, graph inputs left out: those count at all times."""
    return sum(graph.tensors[t].size for t in tensors if graph.producer[t] >= 0)


def _joins(graph: DFGraph, v: int, group: list[int], few: int) -> bool:
    """Whether an op joins the group that has all its readers."""
    op, last = graph.ops[v], graph.ops[group[-1]]
    made = _bytes(graph, op.outputs)
    return (
        len(group) < _MOST
        and op.recomputable == last.recomputable
        and (made <= few or made >= _bytes(graph, last.outputs))
        and (v + 1 == group[0] or made >= _bytes(graph, op.inputs))
        and _memory(graph, [v, *group])[1] <= few
    )


def _memory(graph: DFGraph, group: Sequence[int]) -> tuple[int, int]:
    """The peak of a group besides what it reads, if it holds that to its end; and what that adds."""
    last_read = {t: v for v in group for t in graph.ops[v].inputs}
    made = {t for v in group for t in graph.ops[v].outputs}
    read = held = _bytes(graph, last_read.keys() - made)
    freed = peak = least = 0
    for v in group:
        op = graph.ops[v]
        ended = {t for t in (*op.inputs, *op.outputs) if last_read.get(t) == v}
        unread = {t for t in op.outputs if t not in last_read and v != group[-1]}
        held += _bytes(graph, op.outputs)
        now = held + op.workspace - _bytes(graph, made.intersection(op.reuses) & ended)
        peak, least = max(peak, now), max(least, now - freed)
        held -= _bytes(graph, ended & made | unread)
        freed += _bytes(graph, ended - made)
    return peak - read, peak - least


def graph_of(graph: DFGraph, groups: Sequence[Sequence[int]]) -> DFGraph:
    """The graph of these groups; its tensors are the inputs, then the outputs of the last op of each."""
    kept = [*graph.inputs, *(t for group in groups for t in graph.ops[group[-1]].outputs)]
    ids = {t: i for i, t in enumerate(kept)}

    def known(tensors: Iterable[int]) -> tuple[int, ...]:
        return tuple(ids[t] for t in tensors if t in ids)

    ops: list[Op] = []
    for group in groups:
        op = graph.ops[group[-1]]
        if len(group) > 1:
            cost = math.fsum(graph.ops[v].cost for v in group)
            workspace = max(_memory(graph, group)[0] - _bytes(graph, op.outputs), 0)
            inputs = tuple(sorted({t for v in group for t in graph.ops[v].inputs}))
            op = replace(op, cost=cost, workspace=workspace, inputs=inputs, reuses=())
        ops.append(replace(op, inputs=known(op.inputs), outputs=known(op.outputs), reuses=known(op.reuses)))
    tensors = tuple(graph.tensors[t] for t in kept)
    inputs, outputs = known(graph.inputs), known(graph.outputs)
    return replace(graph, ops=tuple(ops), tensors=tensors, inputs=inputs, outputs=outputs)

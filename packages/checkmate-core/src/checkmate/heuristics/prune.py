"""Pruning a sequence of computes: remove recomputes that the budget has room to avoid.

Every compute makes one copy of each of its outputs; a read uses the latest copy. The copy made at position i
and last read at position l is resident during [i, l]. Removing the compute at i keeps the previous copies of
its outputs, from their own last reads to i; if the budget has room for them, the compute is waste.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from checkmate.analysis import needed_ops
from checkmate.model.graph import DFGraph
from checkmate.problem.deadline import NEVER, Deadline

__all__ = ["pruned"]

_MOST_PASSES = 4
_STRUCK = -1
"""Replaces a removed compute in a sequence, so that positions stay valid."""


class _Copies(NamedTuple):
    """Memory and lifetimes of the copies of a sequence.

    Attributes:
        memory: bytes during each compute, as the judge counts them; int64, shape ``[len(sequence)]``.
        last_read: for each position, the last read of each of its outputs, in the order of
            ``op.outputs``; its own position if no op reads it, ``len(sequence)`` if it is
            needed at the end.
        previous: for each position, the position that made the previous copies of its outputs, or −1.
    """

    memory: npt.NDArray[np.int64]
    last_read: list[list[int]]
    previous: list[int]


def pruned(
    graph: DFGraph, sequence: Sequence[int], budget: int, *, fixed_order: bool, deadline: Deadline = NEVER
) -> list[int]:
    """Remove every compute whose absence keeps the sequence valid and within the budget.

    Computes whose outputs no op reads are removed first, then the most expensive ones; each removal can make
    others unread. The sequence is valid, its peak within ``budget`` bytes. With ``fixed_order``, all first
    runs of needed ops stay, and with them their order. At the deadline the rest stays.
    """
    must_run = needed_ops(graph).tolist() if fixed_order else [False] * graph.n_ops
    kept = list(sequence)
    _strike_unread(graph, kept, must_run)
    passes = 0 if deadline.passed else _MOST_PASSES
    by_cost = sorted(range(len(kept)), key=lambda i: -graph.ops[sequence[i]].cost)
    for _ in range(passes):
        copies, struck = _copies_of(graph, kept), False
        for i in by_cost:
            if deadline.passed:
                break
            if kept[i] != _STRUCK and _is_waste(graph, kept, copies, i, budget):
                kept[i], struck = _STRUCK, True
                _strike_unread(graph, kept, must_run)
                copies = _copies_of(graph, kept)
        if not struck:
            break
    return [v for v in kept if v != _STRUCK]


def _strike_unread(graph: DFGraph, sequence: list[int], must_run: list[bool]) -> None:
    """Strike computes with unread outputs, except first runs of ops that must run."""
    first: dict[int, int] = {}
    for i, v in enumerate(sequence):
        first.setdefault(v, i)
    wanted = [False] * graph.n_tensors
    for t in graph.outputs:
        wanted[t] = True
    for i in range(len(sequence) - 1, -1, -1):
        v = sequence[i]
        if v == _STRUCK:
            continue
        op = graph.ops[v]
        if not any(wanted[t] for t in op.outputs) and not (must_run[v] and first[v] == i):
            sequence[i] = _STRUCK
            continue
        for t in op.outputs:
            wanted[t] = False
        for t in op.inputs:
            wanted[t] = True


def _copies_of(graph: DFGraph, sequence: list[int]) -> _Copies:
    """Follow every copy from its compute to its last read."""
    length = len(sequence)
    last = [-1] * graph.n_tensors
    for t in graph.outputs:
        last[t] = length
    last_read: list[list[int]] = [[]] * length
    change, transient = [0] * (length + 1), [graph.base_size] * length
    for i in range(length - 1, -1, -1):
        if sequence[i] == _STRUCK:
            continue
        op = graph.ops[sequence[i]]
        transient[i] += op.workspace
        last_read[i] = [last[t] if last[t] >= 0 else i for t in op.outputs]
        for t, death in zip(op.outputs, last_read[i], strict=True):
            change[i] += graph.tensors[t].size
            gone = death + (death == length or t not in graph.reused[sequence[death]])
            change[min(gone, length)] -= graph.tensors[t].size
            last[t] = -1
        for t in op.inputs:
            last[t] = max(last[t], i)
    latest, previous = [-1] * graph.n_ops, [-1] * length
    for i, v in enumerate(sequence):
        if v != _STRUCK:
            previous[i], latest[v] = latest[v], i
    memory = np.cumsum(change[:length], dtype=np.int64) + np.array(transient, dtype=np.int64)
    return _Copies(memory, last_read, previous)


def _is_waste(graph: DFGraph, sequence: list[int], copies: _Copies, i: int, budget: int) -> bool:
    """Whether the budget has room to keep the previous copies instead of the compute at ``i``."""
    before = copies.previous[i]
    if before < 0:
        return False
    memory = copies.memory[before + 1 : i].copy()
    outputs = graph.ops[sequence[i]].outputs
    for t, death, gone in zip(outputs, copies.last_read[i], copies.last_read[before], strict=True):
        if death > i:  # the previous copy now lives past its last read, so this read can't reuse it
            reused = t in graph.reused[sequence[gone]]
            memory[gone - before - reused :] += graph.tensors[t].size
    return len(memory) == 0 or int(memory.max()) <= budget

"""Proved lower limits for budgets: the bytes that every valid schedule holds while an op runs.

The *working set* of op v is resident whenever v runs: all bytes that can't be freed, the inputs of v except
those that it reuses, its outputs and its workspace. At the **first** run of v further tensors must be
resident. Let tensor t be made by an op u that may run only once, u an ancestor of v, and let t be a graph
output or be read by a needed descendant w of v. Then u ran before v; every run of w comes after the first run
of v; and t can't be made again. So t is resident in between, and counts as well. The maximum over the ops
that must run is the *floor*.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from checkmate.model.graph import CSR, DFGraph, derived

__all__ = ["Floor", "first_run_sets", "floor", "needed_ops", "working_sets"]

_MOST_TRACKED = 1024  # most run-once tensors that are tracked; leaving some out only lowers the floor


class Floor(NamedTuple):
    """A proved lower limit for budgets.

    Attributes:
        size: bytes that every valid schedule holds at some moment.
        bottleneck: the op with this working set; None if the floor is the outputs held at the end.
    """

    size: int
    bottleneck: int | None


@derived
def floor(graph: DFGraph) -> Floor:
    """The proved floor and the op that sets it (the first of the largest).

    >>> floor(DFGraph.from_nodes(cost=[1, 1], size=[4, 2], deps=[[], [0]]))
    Floor(size=6, bottleneck=1)
    """
    movable_outputs = set(graph.outputs) - set(graph.inputs)
    at_end = graph.base_size + sum(graph.tensors[t].size for t in movable_outputs)
    sets = np.where(needed_ops(graph), first_run_sets(graph), -1)
    if int(sets.max(initial=-1)) < at_end:
        return Floor(at_end, None)
    worst = int(sets.argmax())
    return Floor(int(sets[worst]), worst)


@derived
def needed_ops(graph: DFGraph) -> npt.NDArray[np.bool_]:
    """Which ops every valid schedule must compute at least once: the ancestors of the graph outputs.

    Shape ``[n_ops]``, read-only.
    """
    needed = np.zeros(graph.n_ops, dtype=np.bool_)
    wanted = bytearray(graph.n_tensors)
    for t in graph.outputs:
        wanted[t] = 1
    for i in range(graph.n_ops - 1, -1, -1):
        op = graph.ops[i]
        if any(wanted[t] for t in op.outputs):
            needed[i] = True
            for t in op.inputs:
                wanted[t] = 1
    needed.flags.writeable = False
    return needed


def working_sets(graph: DFGraph) -> npt.NDArray[np.int64]:
    """Bytes resident while each op runs if nothing else is kept; shape ``[n_ops]``."""
    movable = graph.sizes.copy()
    movable[list(graph.inputs)] = 0
    touched = _row_sums(graph.reads, movable) + _row_sums(graph.makes, movable)
    return touched - _row_sums(graph.reuses, movable) + graph.workspaces + graph.base_size


def first_run_sets(graph: DFGraph) -> npt.NDArray[np.int64]:
    """Bytes that every valid schedule holds while each op runs for the first time; shape ``[n_ops]``.

    An op's bytes are its working set and the tensors of run-once ops that are still needed; only the 1024
    largest of these tensors count, so that time stays linear in the graph. The figures of ops that no
    schedule must run are meaningless.
    """
    sets = working_sets(graph)
    every = [t for op in graph.ops if not op.recomputable for t in op.outputs]
    once_only = sorted(every, key=lambda t: -graph.tensors[t].size)[:_MOST_TRACKED]
    sizes = graph.sizes[once_only]
    known: dict[int, int] = {}
    for v, mask in enumerate(_forced(graph, once_only)):
        if mask not in known:
            bits = np.frombuffer(mask.to_bytes(len(once_only) // 8 + 1, "little"), dtype=np.uint8)
            known[mask] = int(sizes @ np.unpackbits(bits, count=len(once_only), bitorder="little"))
        sets[v] += known[mask]
    return sets


def _forced(graph: DFGraph, once_only: list[int]) -> list[int]:
    """For each op v, bit k: ``once_only[k]`` is resident at the first run of v, and v doesn't read it."""
    if not once_only:
        return [0] * graph.n_ops
    bit = [0] * graph.n_tensors
    for k, t in enumerate(once_only):
        bit[t] = 1 << k
    needed = needed_ops(graph).tolist()
    reads = [_union(bit[t] for t in op.inputs) for op in graph.ops]
    made_before = [0] * graph.n_tensors  # bits of t itself and of the ancestors of its producer
    before, after = [0] * graph.n_ops, [0] * graph.n_ops
    for v, op in enumerate(graph.ops):
        before[v] = _union(made_before[t] for t in op.inputs)
        for t in op.outputs:
            made_before[t] = before[v] | bit[t]
    read_after = [0] * graph.n_tensors  # bits of the tensors that the readers of t and their descendants read
    for v in range(graph.n_ops - 1, -1, -1):
        after[v] = _union(read_after[t] for t in graph.ops[v].outputs)
        if needed[v]:
            for t in graph.ops[v].inputs:
                read_after[t] |= after[v] | reads[v]
    at_end = _union(bit[t] for t in graph.outputs)
    return [before[v] & (after[v] | at_end) & ~reads[v] for v in range(graph.n_ops)]


def _union(masks: Iterable[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union


def _row_sums(rows: CSR, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The sum of each row; exact even if the running total wraps around, since differences wrap as well."""
    running = np.zeros(len(rows.indices) + 1, dtype=np.int64)
    np.cumsum(values[rows.indices], out=running[1:])
    return running[rows.indptr[1:]] - running[rows.indptr[:-1]]

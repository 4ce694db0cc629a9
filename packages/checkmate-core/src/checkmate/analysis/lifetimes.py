"""Liveness: the interval in which each tensor is needed, if the ops run in a given order.

A run of an op makes a new copy of each of its outputs. A read uses the latest copy. A copy lives from the run
that makes it to its last read; the last copy of a graph output lives to the end. During run k, memory is
``base_size`` + the sizes of all copies that live at k + the workspace of the run's op. A copy that ends with
run k doesn't count if the op of run k reuses it.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from checkmate.errors import GraphError
from checkmate.model.graph import DFGraph, Op

__all__ = ["Liveness", "liveness"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Liveness:
    """The memory and the lifetimes of an order of ops. Runs count from 0; arrays are read-only int64.

    Attributes:
        first: the run that first makes each tensor, −1 for graph inputs, ``n_runs`` if none does; shape
            ``[n_tensors]``.
        last: the last run that reads each tensor, or that makes it if no run reads its last copy; ``n_runs``
            for graph inputs, graph outputs and tensors that are never made; shape ``[n_tensors]``.
        memory: bytes held during each run, shape ``[n_runs]``.
        peak: the largest of ``memory`` and ``base_size``.
    """

    first: npt.NDArray[np.int64]
    last: npt.NDArray[np.int64]
    memory: npt.NDArray[np.int64]
    peak: int

    def __repr__(self) -> str:
        return f"<Liveness: {len(self.memory)} runs, peak {self.peak} bytes>"


def liveness(graph: DFGraph, order: Sequence[int] | None = None) -> Liveness:
    """The liveness of ``order``: op indices, with repeats for recomputation; default the base order.

    Memory equals the judge's for ``Schedule.from_sequence(graph, order)``. Whether an op may run twice, and
    whether every graph output is made, is not checked: the judge does that.

    Raises:
        GraphError: if an op reads a tensor that no earlier run made, or an index is out of range.

    >>> chain = DFGraph.from_nodes(cost=[1, 1, 1], size=[4, 2, 1], deps=[[], [0], [1]])
    >>> live = liveness(chain)
    >>> live.memory.tolist(), live.last.tolist()
    ([4, 6, 3], [1, 2, 3])
    """
    runs = list(range(graph.n_ops)) if order is None else [operator.index(v) for v in order]
    n_runs, sizes = len(runs), [t.size for t in graph.tensors]
    first = [n_runs] * graph.n_tensors
    for t in graph.inputs:
        first[t] = -1
    last = [n_runs] * graph.n_tensors  # the last run so far of the latest copy
    change = [0] * (n_runs + 1)  # bytes held during run k, minus those during run k − 1

    def end(t: int) -> None:
        """Let the latest copy of a tensor end: after its last run, or before that if this reuses it."""
        over = last[t]
        change[over + (t not in graph.reused[runs[over]])] -= sizes[t]

    for k, v in enumerate(runs):
        op = _op_of(graph, k, v)
        for t in op.inputs:
            if first[t] == n_runs:
                raise GraphError(
                    f"run {k} of the order, {graph.op_label(v)}, reads {graph.tensor_label(t)}, "
                    "which no earlier run makes"
                )
            last[t] = k
        for t in op.outputs:
            if first[t] == n_runs:
                first[t] = k
            else:
                end(t)
            last[t] = k
            change[k] += sizes[t]
    for t in (*graph.inputs, *graph.outputs):
        last[t] = n_runs
    for t, final in enumerate(last):
        if final < n_runs:
            end(t)
    held = np.cumsum(np.array(change[:n_runs], dtype=np.int64)) + graph.base_size
    memory = held + graph.workspaces[np.array(runs, dtype=np.int64)]
    arrays = np.array(first, dtype=np.int64), np.array(last, dtype=np.int64), memory
    for array in arrays:
        array.flags.writeable = False
    peak = max(graph.base_size, int(memory.max(initial=0)))
    return Liveness(first=arrays[0], last=arrays[1], memory=memory, peak=peak)


def _op_of(graph: DFGraph, k: int, v: int) -> Op:
    if not 0 <= v < graph.n_ops:
        raise GraphError(f"run {k} of the order is of op {v}, but there are {graph.n_ops} ops")
    return graph.ops[v]

"""What a graph alone tells, before any solver: its working sets and floor.

The working set of op v is what must be resident while v runs, whatever the schedule: everything that can't
be freed, its inputs, its outputs and its workspace. Its maximum over the ops that must run is a proved lower
limit for any budget, the *floor*.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from checkmate.articulation import articulation_points
from checkmate.graph import CSR, DFGraph

__all__ = ["Floor", "articulation_points", "floor", "needed_ops", "working_sets"]


class Floor(NamedTuple):
    """A proved lower limit for budgets.

    Attributes:
        size: bytes that every valid schedule holds at some moment.
        bottleneck: the op that makes it so; None when the outputs held at the end do.
    """

    size: int
    bottleneck: int | None


def needed_ops(graph: DFGraph) -> npt.NDArray[np.bool_]:
    """Which ops every valid schedule must compute at least once: the ancestors of the graph outputs."""
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
    return needed


def working_sets(graph: DFGraph) -> npt.NDArray[np.int64]:
    """Bytes resident while each op runs if nothing else is kept; shape ``[n_ops]``."""
    movable = graph.sizes.copy()
    movable[list(graph.inputs)] = 0
    touched = _row_sums(graph.reads, movable) + _row_sums(graph.makes, movable)
    return touched + graph.workspaces + graph.base_size


def _row_sums(rows: CSR, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The sum of each row; exact even where the running total wraps around, for differences do too."""
    running = np.zeros(len(rows.indices) + 1, dtype=np.int64)
    np.cumsum(values[rows.indices], out=running[1:])
    return running[rows.indptr[1:]] - running[rows.indptr[:-1]]


def floor(graph: DFGraph) -> Floor:
    """The proved floor and the op that sets it (the first of the largest).

    >>> floor(DFGraph.from_nodes(cost=[1, 1], size=[4, 2], deps=[[], [0]]))
    Floor(size=6, bottleneck=1)
    """
    movable_outputs = set(graph.outputs) - set(graph.inputs)
    at_end = graph.base_size + sum(graph.tensors[t].size for t in movable_outputs)
    sets = np.where(needed_ops(graph), working_sets(graph), 0)
    if graph.n_ops == 0 or int(sets.max()) < at_end:
        return Floor(at_end, None)
    worst = int(sets.argmax())
    return Floor(int(sets[worst]), worst)

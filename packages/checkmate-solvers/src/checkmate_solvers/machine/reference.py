"""The plain evaluator: one pass over the whole sequence, in Python; slow and short, for tests to trust."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from checkmate import DFGraph
from checkmate_solvers.machine.arrays import Ints

__all__ = ["evaluated"]


def evaluated(graph: DFGraph, sequence: Sequence[int]) -> tuple[float, Ints]:
    """Cost of a valid sequence, and bytes beside the base bytes while each of its ops runs.

    >>> graph = DFGraph.from_nodes(cost=[1, 2], size=[4, 3], deps=[[], [0]])
    >>> evaluated(graph, [0, 1])
    (3.0, array([4, 7]))
    """
    memory = np.array([graph.ops[v].workspace for v in sequence], dtype=np.int64)
    born: dict[int, int] = {}
    death: dict[int, int] = {}
    for i, v in enumerate([*sequence, -1]):
        op = graph.ops[v] if v >= 0 else None
        for t in op.inputs if op else graph.outputs:
            death[t] = i
        for t in op.outputs if op else tuple(born):
            if t in born:
                last = death[t]
                reused = last < len(sequence) and t in graph.ops[sequence[last]].reuses
                memory[born[t] : last + 1 - reused] += graph.tensors[t].size
            born[t] = death[t] = i
    return math.fsum(graph.ops[v].cost for v in sequence), memory

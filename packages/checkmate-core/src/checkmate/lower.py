"""From what is kept to what is computed: the op sequence that sets of retained tensors imply.

Let a plan name, for some moments of the base order, a set of tensors. Run the base order; just before the op
of such a moment first runs, bring back what the set has gained since the moment before, and forget every
tensor made so far that is not in it; afterwards recompute what is missing, as late as possible: just before
the op that reads it, with everything that it needs in turn, in base order. Between two moments no op runs
again twice, so the cost is that of the base order plus, for each moment, that of the closure of what is
missed after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from checkmate.graph import DFGraph

__all__ = ["lazy_sequence", "planned_sequence"]


def lazy_sequence(graph: DFGraph, keep: npt.NDArray[np.bool_], at: int) -> list[int]:
    """The base order with one forgetting, and the recomputation that it makes necessary.

    Tensors that can't come back are never forgotten: graph inputs and what non-recomputable ops make.
    Graph outputs that were forgotten are recomputed at the end at the latest.

    Args:
        graph: the graph.
        keep: which tensors survive the moment; shape ``[n_tensors]``. Entries of graph inputs and of
            tensors made at or after ``at`` don't matter.
        at: the op before whose first run everything else is forgotten, 0 … n_ops.

    Returns:
        Op indices with repeats, for :meth:`Schedule.from_sequence`.

    Raises:
        ValueError: if ``keep`` or ``at`` does not fit the graph.

    >>> graph = DFGraph.from_nodes(cost=[1, 1, 1, 1], size=[4] * 4, deps=[[], [0], [1], [0, 2]])
    >>> lazy_sequence(graph, np.array([False, True, True, True]), at=2)
    [0, 1, 2, 0, 3]
    """
    return planned_sequence(graph, {at: keep})


def planned_sequence(graph: DFGraph, plan: Mapping[int, npt.NDArray[np.bool_]]) -> list[int]:
    """As :func:`lazy_sequence`, with any number of moments: ``plan[at]`` is what survives moment ``at``."""
    for at, keep in plan.items():
        if keep.shape != (graph.n_tensors,):
            raise ValueError(f"keep has the shape {keep.shape}, must be ({graph.n_tensors},)")
        if not 0 <= at <= graph.n_ops:
            raise ValueError(f"at is {at}, must be within 0 … {graph.n_ops}")
    missing = bytearray(graph.n_tensors)
    sequence: list[int] = []
    for v in range(graph.n_ops + 1):
        if v in plan:
            sequence += _restored(graph, np.flatnonzero(plan[v]).tolist(), missing)
            _forget(graph, plan[v], v, missing)
        if v < graph.n_ops:
            sequence += [*_restored(graph, graph.ops[v].inputs, missing), v]
    return sequence + _restored(graph, graph.outputs, missing)


def _forget(graph: DFGraph, keep: npt.NDArray[np.bool_], at: int, missing: bytearray) -> None:
    for op in graph.ops[:at]:
        if op.recomputable:
            for t in op.outputs:
                missing[t] = missing[t] or not keep[t]


def _restored(graph: DFGraph, wanted: Iterable[int], missing: bytearray) -> list[int]:
    """The ops that bring back the wanted tensors, in base order; clears what they make in ``missing``."""
    producer = graph.producer
    closure: list[int] = []
    stack = [t for t in wanted if missing[t]]
    while stack:
        t = stack.pop()
        if not missing[t]:
            continue
        v = int(producer[t])
        closure.append(v)
        for made in graph.ops[v].outputs:
            missing[made] = False
        stack += [u for u in graph.ops[v].inputs if missing[u]]
    return sorted(closure)

"""The copies that a schedule keeps longer than it reads them.

A framework frees a tensor after its last read, as ``Schedule.from_sequence`` does. To follow another schedule
to the letter, an executor has to hold these copies.
"""

from __future__ import annotations

from checkmate.model.graph import DFGraph
from checkmate.model.schedule import Schedule

__all__ = ["late_frees"]


def late_frees(graph: DFGraph, schedule: Schedule) -> dict[int, list[int]]:
    """The copies that must be held until a run is over, although no op reads them so late.

    Args:
        graph: the graph.
        schedule: valid.

    Returns:
        Number of a run → the tensors whose copies, made by an earlier run and not read by this one, are
        resident until it is over: because they are freed after it and before the next run, or because it
        makes the next copy. Number of all runs → the tensors that are never freed although they are no
        outputs.

    >>> graph = DFGraph.from_nodes(cost=[1, 1, 1], size=[4, 4, 4], deps=[[], [0], [1]])
    >>> late_frees(graph, Schedule.from_sequence(graph, [0, 1, 2]))
    {}
    >>> from checkmate import Compute, Free
    >>> late_frees(graph, Schedule.of([Compute(0), Compute(1), Compute(2), Free(0), Free(1)]))
    {2: [0]}
    >>> late_frees(graph, Schedule.of([Compute(0), Compute(1), Compute(2), Free(0)]))
    {2: [0], 3: [1]}
    """
    found: dict[int, list[int]] = {}
    used: dict[int, int] = {}  # resident tensor → the last run that read or made its copy
    run = -1
    for code in schedule.codes.tolist():
        if code >= 0:
            run += 1
            op = graph.ops[code]
            if again := [t for t in op.outputs if t in used]:
                found[run] = again
            used |= dict.fromkeys((*op.inputs, *op.outputs), run)
        elif used.pop(~code) != run:
            found.setdefault(run, []).append(~code)
    if never := used.keys() - {*graph.inputs, *graph.outputs}:
        found[run + 1] = sorted(never)
    return found

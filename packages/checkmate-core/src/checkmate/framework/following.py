"""Following a schedule: whether it fits this graph, and the copies that it keeps longer than it reads them.

A schedule names ops and tensors by index only. So a schedule of one graph runs on another if both have the
same reads, makes and recomputable ops, the same sizes, graph inputs and graph outputs. Digests compare more:
costs, for example, which differ each time that they are measured.

A framework frees a tensor after its last read, as ``Schedule.from_sequence`` does. To follow another schedule
to the letter, an executor has to hold some copies longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from checkmate.model.graph import DFGraph
from checkmate.model.schedule import Schedule

__all__ = ["differences", "late_frees"]


def differences(graph: DFGraph, other: DFGraph) -> str:
    """The reasons why a schedule of ``other`` can't run on ``graph``; empty if it can.

    The order of an op's reads doesn't count. Costs, their unit, workspaces, fixed bytes, names and marks of
    the backward pass may differ.

    Returns:
        One line: the number of ops and tensors, then the first difference of each kind, as it is in ``graph``
        and "not" in ``other``.

    >>> graph = DFGraph.from_nodes(cost=[1, 1, 1], size=[4, 4, 8], deps=[[], [0], [1]])
    >>> differences(graph, DFGraph.from_nodes(cost=[3, 4, 5], size=[4, 4, 8], deps=[[], [0], [1]]))
    ''
    >>> other = DFGraph.from_nodes(cost=[1, 1, 1], size=[4, 4, 9], deps=[[], [0], [0]], outputs=[2])
    >>> differences(graph, other)
    "op 2 '2' reads tensor 1, not 0; tensor 2 '2' has 8 bytes, not 9"
    """
    return "; ".join(
        [
            *_counts(graph, other),
            *_first_op(graph, other),
            *_first_size(graph, other),
            *_other_set("the graph", ("has input", "lacks input"), graph.inputs, other.inputs),
            *_other_set("the graph", ("has output", "lacks output"), graph.outputs, other.outputs),
        ]
    )


def _counts(graph: DFGraph, other: DFGraph) -> Iterator[str]:
    if graph.n_ops != other.n_ops:
        yield f"{graph.n_ops} ops, not {other.n_ops}"
    if graph.n_tensors != other.n_tensors:
        yield f"{graph.n_tensors} tensors, not {other.n_tensors}"


def _first_op(graph: DFGraph, other: DFGraph) -> list[str]:
    """The differences of the first op that has one."""
    for i, (op, twin) in enumerate(zip(graph.ops, other.ops, strict=False)):
        label = graph.op_label(i)
        found = [
            *_other_set(label, ("reads", "doesn't read"), op.inputs, twin.inputs),
            *_other_set(label, ("makes", "doesn't make"), op.outputs, twin.outputs),
        ]
        if op.recomputable != twin.recomputable:
            limits = "several times, not only once" if op.recomputable else "only once, not several times"
            found.append(f"{label} may run {limits}")
        if found:
            return found
    return []


def _first_size(graph: DFGraph, other: DFGraph) -> Iterator[str]:
    for t, (tensor, twin) in enumerate(zip(graph.tensors, other.tensors, strict=False)):
        if tensor.size != twin.size:
            yield f"{graph.tensor_label(t)} has {tensor.size} bytes, not {twin.size}"
            return


def _other_set(
    label: str, verbs: tuple[str, str], here: Iterable[int], there: Iterable[int]
) -> Iterator[str]:
    """The first tensor that only one of two sets has, or the first of each."""
    has, lacks = verbs
    added, missing = sorted({*here} - {*there}), sorted({*there} - {*here})
    if added and missing:
        yield f"{label} {has} tensor {added[0]}, not {missing[0]}"
    elif added:
        yield f"{label} also {has} tensor {added[0]}"
    elif missing:
        yield f"{label} {lacks} tensor {missing[0]}"


def late_frees(graph: DFGraph, schedule: Schedule) -> dict[int, list[int]]:
    """The copies that must be held until a run is over, although no op reads them so late.

    Returns:
        Index of a run → the tensors whose copy is resident until the run is over, although an earlier run
        made the copy and this one doesn't read it: it is freed right after this run, or this run makes the
        next copy. Number of all runs → the tensors that are never freed although they are not graph outputs.

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

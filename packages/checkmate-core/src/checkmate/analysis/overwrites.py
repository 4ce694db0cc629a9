"""Writes in place, in a graph whose tensors never change: ordered so that no op reads an overwritten tensor.

Let op u overwrite the tensor s, and let r read s. A schedule may run r again when another op needs its
outputs. Let D(r) be all ops that can cause that: the readers of the outputs of r, for each of these that may
itself run again the readers of its outputs, and so on. D(r) is empty if r runs once.

Let W(u) be the readers r of s other than u, with all of their D(r). Let u read at least one output of each of
them: one that it reads anyway, or a *token*, a tensor of 0 bytes. Then the first runs of W(u) come before u
in every valid schedule. Let writes run once, and also the producers of graph outputs and of the tensors that
writes read, tokens included. Then in every valid schedule without computes in vain, no run of a reader r ≠ u
of s comes after u. Proof: suppose that one does. It is not the first run of r. It is not in vain, so a later
run of some w ∈ D(r) reads its output. If that were the first run of w, it would come before u. So w may run
again, and the argument repeats with this run of w in place of the run of r, with D(w) ⊆ D(r). A schedule is
finite, so this ends. ∎

The tensor s may be a graph input, for example a parameter, or a *version*: a tensor of 0 bytes made by an
earlier write; an op that reads it reads the parameter's new value, in the parameter's memory. A second write
waits for this version, overwrites it, and makes the next one. Each version has one producer, which runs once,
and at most one write overwrites it, so the parameter holds the right value at each read. A write may also
make other tensors.

The waiting of u for W(u) must not be circular. Let no op of the base order read an overwritten tensor, and
keep all ops except writes in that order. A write may then wait until the first op that is not a write reads
its output, or the output of a write that must follow it; a reader r whose D(r) extends beyond that runs once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from operator import or_

import numpy as np

from checkmate.model.graph import DFGraph, Op, Tensor

__all__ = ["in_vain", "late_reads", "sequence_to_run", "with_writes_settled"]


def with_writes_settled(
    graph: DFGraph, writes: Mapping[int, Sequence[int]], in_sequence: Sequence[int] = ()
) -> tuple[DFGraph, list[int]]:
    """Move every write to the earliest place that is sound for all recomputation, in any order.

    These ops run once: readers of an overwritten tensor in the backward pass, if the write could otherwise
    not directly follow them; producers of graph outputs and of the tensors that a write reads or waits for;
    and ops that could be needed again after an op that must follow the write. All other ops may still be
    recomputed: the write waits until no op can need them again.

    Args:
        graph: the step, in the order of the program; writes may come later than necessary.
        writes: op → the tensors that it overwrites: graph inputs, or versions of them that other writes
            make. Each tensor is overwritten at most once. Writes run once, whatever ``recomputable`` says.
        in_sequence: ops whose first runs must keep their order, for example because they draw random numbers.

    Returns:
        The graph with its ops in the new base order, and the former index of each op. New tensors are
        appended.

    Raises:
        ValueError: if two writes overwrite the same tensor; if an op reads a tensor after its overwrite.

    The update of a weight reads the momentum that another write has made:

    >>> from checkmate import Op
    >>> names = ("weight", "momentum", "gradient", "rest", "new momentum", "new weight")
    >>> tensors = [Tensor(name=name, size=0 if "new" in name else 4) for name in names]
    >>> backward = Op(name="backward", inputs=(0,), outputs=(2,), cost=1)
    >>> go_on = Op(name="go on", inputs=(), outputs=(3,), cost=1)
    >>> turn = Op(name="turn", inputs=(1, 2), outputs=(4,), cost=1)
    >>> move = Op(name="move", inputs=(0, 4), outputs=(5,), cost=1)
    >>> ops = (backward, go_on, turn, move)
    >>> step = DFGraph(ops=ops, tensors=tensors, inputs=(0, 1), outputs=(3, 4, 5))
    >>> [op.name for op in with_writes_settled(step, {2: [1], 3: [0]})[0].ops]
    ['backward', 'turn', 'move', 'go on']
    """
    _refuse(graph, writes)
    ops, tensors = _with_tokens(graph, {v: [u] for u, v in pairwise(in_sequence)})
    graph = replace(graph, ops=tuple(ops), tensors=tuple(tensors))
    readers = {u: _readers(graph, writes[u], but=u) for u in sorted(writes)}
    behind = {u: {*rs, *_makers(graph, (*graph.ops[u].inputs, *writes[u]))} for u, rs in readers.items()}
    free, causes = _free_to_run_again(graph, readers, behind)
    asked = {u: reduce(or_, (causes[r] for r in rs), 0) for u, rs in readers.items()}
    place: dict[int, int] = {}
    for u, found in behind.items():
        place[u] = max([asked[u].bit_length() - 1, *(place.get(v, v) for v in found)])
    order = sorted(range(graph.n_ops), key=lambda v: (place.get(v, v), v in writes, v))

    ancestors = _ancestors(graph)
    last = {u: _last_of(asked[u] | _bits(found), ancestors, u) for u, found in behind.items()}
    for w in {w for found in last.values() for w in found}:
        free[w] = False
    ops, tensors = _with_tokens(graph, last)
    ops = [replace(ops[v], recomputable=free[v]) for v in order]
    return replace(graph, ops=tuple(ops), tensors=tuple(tensors)), order


def in_vain(graph: DFGraph, sequence: Sequence[int]) -> list[int]:
    """The positions of computes in vain in a sequence: recomputes whose outputs no later op reads."""
    first = dict(zip(reversed(sequence), reversed(range(len(sequence))), strict=True))
    wanted = np.zeros(graph.n_tensors, dtype=bool)
    wanted[list(graph.outputs)] = True
    vain: list[int] = []
    for k in range(len(sequence) - 1, -1, -1):
        op = graph.ops[sequence[k]]
        outputs, inputs = list(op.outputs), list(op.inputs)
        if first[sequence[k]] != k and not wanted[outputs].any():
            vain.append(k)
            continue
        wanted[outputs] = False
        wanted[inputs] = True
    return vain[::-1]


def late_reads(
    graph: DFGraph, sequence: Sequence[int], writes: Mapping[int, Sequence[int]]
) -> list[tuple[int, int]]:
    """(position, write) of every compute in a sequence that reads a tensor after its overwrite.

    Args:
        graph: the step.
        sequence: op indices; each write runs once.
        writes: op → the tensors that it overwrites.
    """
    written: dict[int, int] = {}
    found: list[tuple[int, int]] = []
    for k, v in enumerate(sequence):
        found += [(k, written[t]) for t in graph.ops[v].inputs if t in written]
        written |= dict.fromkeys(writes.get(v, ()), v)
    return found


def sequence_to_run(
    graph: DFGraph, sequence: Sequence[int], writes: Mapping[int, Sequence[int]]
) -> list[int]:
    """The sequence of a schedule without computes in vain, checked for late reads.

    Args:
        graph: from :func:`with_writes_settled`.
        sequence: the ops that a valid schedule computes, in order.
        writes: op → the tensors that it overwrites.

    Raises:
        RuntimeError: if an op reads a tensor after its overwrite.
    """
    vain = set(in_vain(graph, sequence))
    kept = [v for k, v in enumerate(sequence) if k not in vain]
    for k, u in late_reads(graph, kept, writes):
        raise RuntimeError(f"the schedule runs {graph.op_label(kept[k])} after {graph.op_label(u)}")
    return kept


def _refuse(graph: DFGraph, writes: Mapping[int, Sequence[int]]) -> None:
    """Raise unless each tensor is overwritten at most once, and the base order has no late read."""
    by: dict[int, int] = {}
    for u, overwritten in writes.items():
        for t in overwritten:
            if t in by:
                raise ValueError(
                    f"{graph.op_label(by[t])} and {graph.op_label(u)} overwrite {graph.tensor_label(t)}: "
                    "let the later one overwrite a version that the earlier one makes"
                )
            if graph.producer[t] >= u:
                raise ValueError(f"{graph.op_label(u)} overwrites {graph.tensor_label(t)} before it is made")
            by[t] = u
    for v, u in late_reads(graph, range(graph.n_ops), writes):
        raise ValueError(f"{graph.op_label(v)} reads a tensor that {graph.op_label(u)} has overwritten")


def _readers(graph: DFGraph, tensors: Iterable[int], but: int) -> set[int]:
    return {v for t in tensors for v in graph.readers.row(t).tolist()} - {but}


def _makers(graph: DFGraph, tensors: Iterable[int]) -> set[int]:
    return set(graph.producer[list(tensors)].tolist()) - {-1}


def _free_to_run_again(
    graph: DFGraph, readers: Mapping[int, set[int]], behind: Mapping[int, set[int]]
) -> tuple[list[bool], list[int]]:
    """Which ops stay recomputable, and D(v) of each op v as the bits of a number.

    Args:
        graph: the step.
        readers: write → the other readers of the tensors that it overwrites; the writes in base order.
        behind: write → those readers, and the producers of the tensors that it reads or overwrites.
    """
    free = [op.recomputable for op in graph.ops]
    made_once = {*graph.outputs, *(t for u in readers for t in graph.ops[u].inputs)}
    for v in (*readers, *_makers(graph, made_once)):
        free[v] = False
    until = [graph.n_ops] * graph.n_ops  # the first op that D(v) may not reach
    for u, (soonest, latest) in _room(graph, behind).items():
        for r in readers[u]:
            until[r] = min(until[r], soonest + 1 if graph.ops[r].backward else latest)

    causes = [0] * graph.n_ops
    for v in range(graph.n_ops - 1, -1, -1):
        if free[v]:
            asking = _readers(graph, graph.ops[v].outputs, but=v)
            bits = reduce(or_, (causes[w] for w in asking), _bits(asking))
            free[v] = bits.bit_length() <= until[v]
            causes[v] = bits if free[v] else 0
    return free, causes


def _room(graph: DFGraph, behind: Mapping[int, set[int]]) -> dict[int, tuple[int, int]]:
    """For each write the earliest op that it could directly follow, and the first op that must follow it."""
    soonest: dict[int, int] = {}
    for u, found in behind.items():
        soonest[u] = max((soonest.get(v, v) for v in found), default=-1)
    latest = dict.fromkeys(behind, graph.n_ops)
    for u in reversed(list(behind)):
        reading = _readers(graph, graph.ops[u].outputs, but=u)
        latest[u] = min([latest[u], *(v for v in reading if v not in behind)])
        for v in behind[u] & behind.keys():
            latest[v] = min(latest[v], latest[u])
    return {u: (soonest[u], latest[u]) for u in behind}


def _ancestors(graph: DFGraph) -> list[int]:
    """For each op, itself and its ancestors, as the bits of a number."""
    ancestors: list[int] = []
    for v, op in enumerate(graph.ops):
        ancestors.append(reduce(or_, (ancestors[u] for u in _makers(graph, op.inputs)), 1 << v))
    return ancestors


def _last_of(wanted: int, ancestors: list[int], v: int) -> list[int]:
    """The ops wanted before v, without the ancestors of v and without ancestors of other wanted ops."""
    last: list[int] = []
    wanted &= ~ancestors[v]
    while wanted:
        last.append(wanted.bit_length() - 1)
        wanted &= ~ancestors[last[-1]]
    return last


def _bits(ops: Iterable[int]) -> int:
    return reduce(or_, (1 << v for v in ops), 0)


def _with_tokens(graph: DFGraph, before: Mapping[int, Sequence[int]]) -> tuple[list[Op], list[Tensor]]:
    """Ops and tensors, where each op reads a token of each op that must run before it."""
    ops, tensors = list(graph.ops), list(graph.tensors)
    for w in dict.fromkeys(w for found in before.values() for w in found):
        ops[w] = replace(ops[w], outputs=(*ops[w].outputs, len(tensors)))
        tensors.append(Tensor(name=f"{ops[w].name} done", size=0))
    for v, found in before.items():
        ops[v] = replace(ops[v], inputs=(*ops[v].inputs, *(ops[w].outputs[-1] for w in found)))
    return ops, tensors

"""Writes in place, in a graph whose tensors never change: so ordered that no op reads too late.

Let u overwrite the tensor s, and let r read s. A schedule may run r again, whenever something asks for what
r made. Let D(r) be all ops that can cause that: the readers of what r makes and, where one of these may
itself run again, the readers of what that one makes, and so on. D(r) is empty if r runs once.

Let W(u) be the readers r of s, but for u, with all of their D(r). The first runs of W(u) come before u in
every valid schedule, whatever its order, if u reads something of each: of what it does not read anyway, a
*token*, a tensor of no bytes. Let writes, and what makes graph outputs, or what writes read, tokens included,
run once. Then in every valid schedule that computes nothing in vain, no run of a reader r of s but u comes
after u. Proof: suppose that one does. It is not r's first. As it is not in vain, some w ∈ D(r) reads what it
makes, later. Were that the first run of w, it would come before u. So w may run again, and the same holds for
this run of w in the place of that of r, with D(w) ⊆ D(r). A schedule is finite, so this ends. ∎

Nothing here asks what s is. It may be a graph input, say a parameter, or a *version*: a tensor that an
earlier write makes, of no bytes as the memory is the parameter's, in which whoever reads the parameter after
that write finds its new value. A second write overwrites this version, for which it waits, and makes the next
one. Each version has one maker, which runs once, and at most one write that overwrites it, so that the
parameter holds the right value whenever one is read. A write may make other tensors besides.

That u waits for W(u) must not go round in a circle. Let the base order be one that reads nothing too late,
and leave all ops but writes in it. A write then may wait until the first op that is no write reads what it
makes, or what a write that must follow it makes; a reader r with a D(r) that goes on longer runs once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from operator import or_

import numpy as np

from checkmate.graph import DFGraph, Op, Tensor

__all__ = ["in_vain", "late_reads", "sequence_to_run", "with_writes_settled"]


def with_writes_settled(
    graph: DFGraph, writes: Mapping[int, Sequence[int]], in_sequence: Sequence[int] = ()
) -> tuple[DFGraph, list[int]]:
    """Let every write stand as early as is sound, whatever is recomputed around it, in any order.

    Ops of the backward pass that read what is overwritten run once if the write could else not follow them
    at once; so do those that make what a write reads or waits for, or a graph output, and those that could be
    asked for again after something that must follow the write. Other ops stay free to run again: the write
    waits until nothing can ask for them.

    Args:
        graph: the step, its base order being that of the program; writes may stand later than they need to.
        writes: op → the tensors that it overwrites: graph inputs, or versions of them that other writes
            make. Each tensor is overwritten at most once. Writes run once, whatever ``recomputable`` says.
        in_sequence: ops whose first runs must keep their order, as they draw random numbers, for example.

    Returns:
        The graph with its ops in the new base order, and for each of them its index before. New tensors
        stand last.

    Raises:
        ValueError: if two writes overwrite the same tensor; if an op reads what a write before it overwrites.

    A weight whose update reads the momentum that another write has made:

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
    """The positions of computes in a sequence that nobody asked for: not first, and nobody reads them."""
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
    """(position, write) of every compute in a sequence that reads what a write before it has overwritten.

    Args:
        graph: the step.
        sequence: of ops, by which each write runs once.
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
    """A schedule's sequence without what is computed in vain, looked over once more before it runs.

    Args:
        graph: with settled writes.
        sequence: of a valid schedule.
        writes: op → the tensors that it overwrites.

    Raises:
        RuntimeError: if an op reads what a write before it has overwritten.
    """
    vain = set(in_vain(graph, sequence))
    kept = [v for k, v in enumerate(sequence) if k not in vain]
    for k, u in late_reads(graph, kept, writes):
        raise RuntimeError(f"the schedule runs {graph.op_label(kept[k])} after {graph.op_label(u)}")
    return kept


def _refuse(graph: DFGraph, writes: Mapping[int, Sequence[int]]) -> None:
    """Raise unless each tensor is overwritten once, and the base order reads nothing too late."""
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
        raise ValueError(f"{graph.op_label(v)} reads what {graph.op_label(u)} overwrites")


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
        readers: write → the other ops that read what it overwrites, the writes in base order.
        behind: write → these, and what makes what it reads or overwrites.
    """
    free = [op.recomputable for op in graph.ops]
    made_once = {*graph.outputs, *(t for u in readers for t in graph.ops[u].inputs)}
    for v in (*readers, *_makers(graph, made_once)):
        free[v] = False
    until = [graph.n_ops] * graph.n_ops  # D(v) must end before
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
    """For each write the op that it could directly follow at the soonest, and the op that must follow it."""
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
    """For each op, itself and what must have run before it, as the bits of a number."""
    ancestors: list[int] = []
    for v, op in enumerate(graph.ops):
        ancestors.append(reduce(or_, (ancestors[u] for u in _makers(graph, op.inputs)), 1 << v))
    return ancestors


def _last_of(wanted: int, ancestors: list[int], v: int) -> list[int]:
    """Those of the ops wanted before v that neither v nor another one of them brings along."""
    last: list[int] = []
    wanted &= ~ancestors[v]
    while wanted:
        last.append(wanted.bit_length() - 1)
        wanted &= ~ancestors[last[-1]]
    return last


def _bits(ops: Iterable[int]) -> int:
    return reduce(or_, (1 << v for v in ops), 0)


def _with_tokens(graph: DFGraph, before: Mapping[int, Sequence[int]]) -> tuple[list[Op], list[Tensor]]:
    """Ops and tensors, each op reading a token of the ops that must have run before it."""
    ops, tensors = list(graph.ops), list(graph.tensors)
    for w in dict.fromkeys(w for found in before.values() for w in found):
        ops[w] = replace(ops[w], outputs=(*ops[w].outputs, len(tensors)))
        tensors.append(Tensor(name=f"{ops[w].name} done", size=0))
    for v, found in before.items():
        ops[v] = replace(ops[v], inputs=(*ops[v].inputs, *(ops[w].outputs[-1] for w in found)))
    return ops, tensors

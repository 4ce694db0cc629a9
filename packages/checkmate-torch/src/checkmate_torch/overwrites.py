"""Writes in place, in a graph whose tensors never change: so ordered that no op reads too late.

Let u overwrite the graph input s, and let r read s. A schedule may run r again, whenever something asks for
what r made. Let D(r) be all ops that can cause that: the readers of what r makes and, where one of these may
itself run again, the readers of what that one makes, and so on. D(r) is empty if r runs once.

Let W(u) be the readers r of s with all of their D(r). The first runs of W(u) come before u in every valid
schedule, whatever its order, if u reads something of each: of what it does not read anyway, a *token*, a
tensor of no bytes. Let graph outputs, and what writes read, tokens included, be made by ops that run once.
Then in every valid schedule that computes nothing in vain, no run of a reader r of s comes after u. Proof:
suppose that one does. It is not r's first. As it is not in vain, some w ∈ D(r) reads what it makes, later.
Were that the first run of w, it would come before u. So w may run again, and the same holds for this run of w
in the place of that of r, with D(w) ⊆ D(r). A schedule is finite, so this ends. ∎
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from checkmate import DFGraph, Tensor

__all__ = ["in_vain", "late_reads", "with_writes_settled"]


def with_writes_settled(
    graph: DFGraph, writes: Mapping[int, int], in_sequence: Sequence[int] = ()
) -> tuple[DFGraph, list[int]]:
    """Let every write stand as early as is sound, whatever is recomputed around it, in any order.

    Ops of the backward pass that read what is overwritten run once if the write could else not follow them
    at once; so do those that make what a write reads or waits for, or a graph output. Other ops stay free to
    run again: the write waits until nothing can ask for them.

    Args:
        graph: the step; the writes may stand anywhere behind what they read.
        writes: op → the graph input that it overwrites; each input at most once.
        in_sequence: ops whose first runs must keep their order, as they draw random numbers, for example.

    Returns:
        The graph with its ops in the new base order, and for each of them its index before. New tensors
        stand last.

    Raises:
        ValueError: if a write reads what another one overwrites.

    >>> from checkmate import Op
    >>> p, g, done, rest = (Tensor(name=name, size=4) for name in ("p", "g", "done", "rest"))
    >>> gradient = Op(name="gradient", inputs=(0,), outputs=(1,), cost=1)
    >>> go_on = Op(name="go on", inputs=(), outputs=(3,), cost=1)
    >>> update = Op(name="update", inputs=(0, 1), outputs=(2,), cost=1, recomputable=False)
    >>> step = DFGraph(ops=(gradient, go_on, update), tensors=(p, g, done, rest), inputs=(0,), outputs=(2, 3))
    >>> [op.name for op in with_writes_settled(step, {2: 0})[0].ops]
    ['gradient', 'update', 'go on']
    """
    graph = _with_tokens(graph, {v: [u] for u, v in pairwise(in_sequence)})
    consumers = _consumers(graph)
    readers = {u: [v for v in consumers[s] if v != u] for u, s in writes.items()}
    for u, found in readers.items():
        for other in writes.keys() & found:
            raise ValueError(f"{graph.op_label(other)} reads what {graph.op_label(u)} overwrites")

    free = _free_to_run_again(graph, consumers, readers)
    waits = {u: set(rs).union(*(_causes(graph, consumers, free, r) for r in rs)) for u, rs in readers.items()}
    follows = {u: max([*waits[u], *_makers(graph, u)], default=-1) for u in writes}
    order = sorted(range(graph.n_ops), key=lambda v: (follows.get(v, v), v in writes, v))

    ancestors = _ancestors(graph)
    last = {u: _last_of(waits[u], ancestors, u) for u in writes}
    for w in {w for found in last.values() for w in found}:
        free[w] = False
    graph = _with_tokens(graph, last)
    return replace(graph, ops=tuple(replace(graph.ops[v], recomputable=free[v]) for v in order)), order


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


def late_reads(graph: DFGraph, sequence: Sequence[int], writes: Mapping[int, int]) -> list[tuple[int, int]]:
    """(position, write) of every compute in a sequence that reads what a write before it has overwritten."""
    written: dict[int, int] = {}
    found: list[tuple[int, int]] = []
    for k, v in enumerate(sequence):
        found += [(k, written[t]) for t in graph.ops[v].inputs if t in written]
        if v in writes:
            written[writes[v]] = v
    return found


def _consumers(graph: DFGraph) -> list[list[int]]:
    consumers: list[list[int]] = [[] for _ in graph.tensors]
    for v, op in enumerate(graph.ops):
        for t in op.inputs:
            consumers[t].append(v)
    return consumers


def _makers(graph: DFGraph, v: int) -> list[int]:
    return [u for u in graph.producer[list(graph.ops[v].inputs)].tolist() if u >= 0]


def _free_to_run_again(
    graph: DFGraph, consumers: list[list[int]], readers: Mapping[int, list[int]]
) -> list[bool]:
    """Which ops stay recomputable."""
    free = [op.recomputable for op in graph.ops]
    for t in (*graph.outputs, *(t for u in readers for t in graph.ops[u].inputs)):
        if graph.producer[t] >= 0:
            free[graph.producer[t]] = False
    for u, found in readers.items():
        soonest = max([*found, *_makers(graph, u)], default=-1)
        for r in found:
            if graph.ops[r].backward and free[r]:
                free[r] = max(_causes(graph, consumers, free, r), default=-1) <= soonest
    return free


def _causes(graph: DFGraph, consumers: list[list[int]], free: list[bool], r: int) -> set[int]:
    """D(r): the ops that can make a schedule run r again."""
    found: set[int] = set()
    stack = [r]
    while stack:
        v = stack.pop()
        if free[v]:
            new = {w for t in graph.ops[v].outputs for w in consumers[t]} - found
            found |= new
            stack.extend(new)
    return found


def _ancestors(graph: DFGraph) -> list[int]:
    """For each op, itself and what must have run before it, as the bits of a number."""
    ancestors: list[int] = []
    for v in range(graph.n_ops):
        bits = 1 << v
        for u in _makers(graph, v):
            bits |= ancestors[u]
        ancestors.append(bits)
    return ancestors


def _last_of(wanted: set[int], ancestors: list[int], v: int) -> list[int]:
    """Those of the ops wanted before v that neither v nor another one of them brings along."""
    covered, last = ancestors[v], []
    for w in sorted(wanted, reverse=True):
        if not covered >> w & 1:
            last.append(w)
            covered |= ancestors[w]
    return last


def _with_tokens(graph: DFGraph, before: Mapping[int, Sequence[int]]) -> DFGraph:
    """Let each op read a token of the ops that must have run before it."""
    ops, tensors = list(graph.ops), list(graph.tensors)
    for w in dict.fromkeys(w for found in before.values() for w in found):
        ops[w] = replace(ops[w], outputs=(*ops[w].outputs, len(tensors)))
        tensors.append(Tensor(name=f"{ops[w].name} done", size=0))
    for v, found in before.items():
        ops[v] = replace(ops[v], inputs=(*ops[v].inputs, *(ops[w].outputs[-1] for w in found)))
    return replace(graph, ops=tuple(ops), tensors=tuple(tensors))

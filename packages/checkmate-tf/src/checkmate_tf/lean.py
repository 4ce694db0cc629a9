"""An order of a graph's ops in which little is held: next always the op that adds the least to what is held.

What a graph's inputs hold is there all the time, so an op that has to allocate waits until those that free
something, or need no room, have run.
"""

from __future__ import annotations

import heapq

from checkmate import DFGraph

__all__ = ["lean_order"]


def lean_order(graph: DFGraph) -> list[int]:
    """Every op once, each after those whose outputs it reads; of several, the first in the graph goes first.

    Two results, each added up from a square that is large:

    >>> from checkmate import Op, Tensor
    >>> tensors = [Tensor(name=name, size=size) for name, size in zip("xabcd", (4, 4, 4, 1, 1))]
    >>> reads = {"square a": (0, 1), "square b": (0, 2), "sum a": (1, 3), "sum b": (2, 4)}
    >>> ops = [Op(name=name, inputs=(t,), outputs=(u,), cost=1) for name, (t, u) in reads.items()]
    >>> graph = DFGraph(ops=ops, tensors=tensors, inputs=(0,), outputs=(3, 4))
    >>> [graph.ops[v].name for v in lean_order(graph)]
    ['square a', 'sum a', 'square b', 'sum b']
    """
    kept = {*graph.inputs, *graph.outputs}
    readers = [graph.readers.row(t).tolist() for t in range(graph.n_tensors)]
    unread = [len(found) for found in readers]
    waits = [sum(graph.producer[t] >= 0 for t in op.inputs) for op in graph.ops]

    def added(v: int) -> int:
        op = graph.ops[v]
        freed = (t for t in op.inputs if unread[t] == 1 and t not in kept)
        return sum(graph.tensors[t].size for t in op.outputs) - sum(graph.tensors[t].size for t in freed)

    ready = [(added(v), v) for v, n in enumerate(waits) if not n]
    heapq.heapify(ready)
    order: dict[int, None] = {}
    while ready:
        _, v = heapq.heappop(ready)
        if v in order:
            continue
        order[v] = None
        for t in graph.ops[v].outputs:
            for r in readers[t]:
                waits[r] -= 1
                if not waits[r]:
                    heapq.heappush(ready, (added(r), r))
        for t in graph.ops[v].inputs:
            unread[t] -= 1
            for r in readers[t] if unread[t] == 1 else ():
                if r not in order and not waits[r]:
                    heapq.heappush(ready, (added(r), r))
    return list(order)

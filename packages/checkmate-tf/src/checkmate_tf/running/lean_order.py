"""Order a graph's ops so that few bytes are held: the next op is always the one that adds the fewest bytes.

The inputs of the graph are resident all the time, so an op that has to allocate waits until the ops that free
tensors, or need no room, have run.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from checkmate import DFGraph

__all__ = ["lean_order"]


def lean_order(graph: DFGraph) -> list[int]:
    """Every op once, after the ops whose outputs it reads; among equals, the graph's first goes first.

    Two results, each the sum of a large square:

    >>> from checkmate import Op, Tensor
    >>> tensors = [Tensor(name=name, size=size) for name, size in zip("xabcd", (4, 4, 4, 1, 1))]
    >>> reads = {"square a": (0, 1), "square b": (0, 2), "sum a": (1, 3), "sum b": (2, 4)}
    >>> ops = [Op(name=name, inputs=(t,), outputs=(u,), cost=1) for name, (t, u) in reads.items()]
    >>> graph = DFGraph(ops=ops, tensors=tensors, inputs=(0,), outputs=(3, 4))
    >>> [graph.ops[v].name for v in lean_order(graph)]
    ['square a', 'sum a', 'square b', 'sum b']
    """
    progress = _Progress(graph)
    ready = [(progress.added(v), v) for v, n in enumerate(progress.waits) if not n]
    heapq.heapify(ready)
    order: dict[int, None] = {}
    while ready:
        _, v = heapq.heappop(ready)
        if v not in order:
            order[v] = None
            for u in progress.run(v):
                if u not in order and not progress.waits[u]:
                    heapq.heappush(ready, (progress.added(u), u))
    return list(order)


class _Progress:
    """Counts that change while the ops of a graph run.

    Attributes:
        waits: op → the number of its inputs that are not made yet.
        unread: tensor → the number of ops that will still read it.
    """

    def __init__(self, graph: DFGraph) -> None:
        self.graph = graph
        self.kept = {*graph.inputs, *graph.outputs}
        self.readers = [graph.readers.row(t).tolist() for t in range(graph.n_tensors)]
        self.unread = [len(found) for found in self.readers]
        self.waits = [sum(graph.producer[t] >= 0 for t in op.inputs) for op in graph.ops]

    def added(self, v: int) -> int:
        """Bytes of the outputs of op v, minus the bytes of the inputs that no op reads after it."""
        op, tensors = self.graph.ops[v], self.graph.tensors
        freed = (t for t in op.inputs if self.unread[t] == 1 and t not in self.kept)
        return sum(tensors[t].size for t in op.outputs) - sum(tensors[t].size for t in freed)

    def run(self, v: int) -> Iterator[int]:
        """Run op v; yield the ops that now wait for fewer inputs, or would now free an input."""
        for t in self.graph.ops[v].outputs:
            for u in self.readers[t]:
                self.waits[u] -= 1
                yield u
        for t in self.graph.ops[v].inputs:
            self.unread[t] -= 1
            if self.unread[t] == 1:
                yield from self.readers[t]

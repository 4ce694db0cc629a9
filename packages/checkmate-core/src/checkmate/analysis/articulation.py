"""Articulation points of the forward pass: ops whose removal disconnects it.

Let F be the undirected graph whose vertices are the forward ops (``backward=False``), with an edge {u, v} if
v reads a tensor that u makes. Graph inputs have no producer, so sharing a parameter or the batch adds no
edge. An *articulation point* is an op whose removal leaves F with more connected components than it had.

Two ops that read the same tensor are joined only through its producer: a skip connection bypasses the ops
between its start and its end, but not the op at its start.
"""

from __future__ import annotations

from checkmate.model.graph import DFGraph

__all__ = ["articulation_points"]


def articulation_points(graph: DFGraph) -> tuple[int, ...]:
    """The articulation points of the forward pass, ascending.

    In a depth-first search, low(v) is the earliest entry time of all ops next to a descendant of op v. An op
    u that is not a root is an articulation point if and only if some child v has low(v) ≥ the entry time of
    u; a root, if and only if it has several children (Hopcroft and Tarjan 1973, "Algorithm 447"). Time and
    memory are linear in the reads of the graph; there is no recursion.

    Caution if you keep only the outputs of these ops: the two ends of a chain are not articulation points,
    since nothing lies behind them; an op that alone reads a side branch is one, wherever it is.

    >>> articulation_points(DFGraph.from_nodes(cost=[1] * 5, size=[1] * 5, deps=[[], [0], [1], [2, 1], [3]]))
    (1, 3)
    """
    neighbours = _forward_neighbours(graph)
    entered, low, found = [0] * graph.n_ops, [0] * graph.n_ops, [False] * graph.n_ops
    clock = 0
    for root in range(graph.n_ops):
        if entered[root]:
            continue
        clock += 1
        entered[root] = low[root] = clock
        path, children = [root], 0
        while path:
            v = path[-1]
            if neighbours[v]:
                u = neighbours[v].pop()
                if entered[u]:
                    low[v] = min(low[v], entered[u])
                else:
                    clock += 1
                    entered[u] = low[u] = clock
                    path.append(u)
                continue
            path.pop()
            if len(path) > 1:
                low[path[-1]] = min(low[path[-1]], low[v])
                found[path[-1]] |= low[v] >= entered[path[-1]]
            elif path:
                children += 1
        found[root] = children > 1
    return tuple(v for v in range(graph.n_ops) if found[v])


def _forward_neighbours(graph: DFGraph) -> list[list[int]]:
    """The neighbours of each op in F, one entry per read; none for backward ops."""
    neighbours: list[list[int]] = [[] for _ in graph.ops]
    producer = graph.producer.tolist()
    for v, op in enumerate(graph.ops):
        if not op.backward:
            for t in op.inputs:
                u = producer[t]
                if u >= 0 and not graph.ops[u].backward:
                    neighbours[u].append(v)
                    neighbours[v].append(u)
    return neighbours

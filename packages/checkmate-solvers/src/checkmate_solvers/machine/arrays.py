"""A sequence of computes as arrays, for C: the graph, the nodes, the blocks that hold them.

A *node* is one compute in the sequence; its id stays while it is there. Each node makes one copy of each
output; ``death`` is the node that reads that copy last, or the node itself if no other does. The nodes are in
blocks of at most 64, and the *position* of a node is ``64 · block + index``, so positions compare like places
in the sequence. A block knows the most memory of its nodes: adding bytes to a stretch of the sequence touches
two blocks and one number for each block between. The last node is the *end*, an op that reads all outputs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from checkmate import DFGraph
from checkmate.analysis import needed_ops

__all__ = ["ANY_BUDGET", "BLOCK", "State", "state_of"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

ANY_BUDGET = 2**62
"""A budget with room for everything."""

BLOCK = 64
"""Most nodes of a block."""
FILLED = 32
"""Nodes of a block after a new layout."""
SHIFT, INSIDE = 6, BLOCK - 1
"""``position >> SHIFT`` is the block, ``position & INSIDE`` the index in it."""

BLOCKS, FREE, LOGGED, REPEATED, MARK, BEST_LENGTH, OPS, NODES, LOG_ROOM, LOTS, WIDTH = range(11)
"""Entries of ``State.counts``. These change: blocks in use, free node ids, entries of the log, ops that run
several times, the last mark given out, length of ``State.best``. These stay: number of ops without the end
(also the end's id), number of node ids, most entries of the log, length of ``State.lots``, most outputs of
an op."""
COST, BEST, LITTLE, TEMPERATURE = range(4)
"""Entries of ``State.totals``: cost of the sequence; cost of ``State.best`` (infinite if there is none); a
small cost, by which the one that frees more bytes wins of two drops that cost nothing; temperature (in a
repair, relative to the usual one)."""


class State(NamedTuple):
    """All arrays of a search, in the order of ``state.h``. The graph's do not change; the end is the last op.

    ``table`` holds addresses: no array may be replaced by another one.
    """

    cost: Floats  # of each op; the end costs nothing
    workspace: Ints  # bytes of each op
    made: Ints  # bytes of each op's outputs
    once: Flags  # whether an op may run only once
    must: Flags  # whether the first run of an op has to stay where it is, in base order
    reads_at: Ints
    reads: Ints  # tensors that each op reads, compressed rows; graph inputs left out
    makes_at: Ints
    makes: Ints  # tensors that each op makes
    users_at: Ints
    users: Ints  # ops that read each tensor, the end included
    reuses_at: Ints
    reuses: Ints  # tensors that each op allocates in place of, if it reads them last
    producer: Ints  # the op that makes a tensor
    place: Ints  # position of a tensor among the outputs of that op
    size: Ints  # bytes of each tensor
    lots: Ints  # tensors to draw from, the larger the more often
    op: Ints  # the op of each node
    prev: Ints  # the node of the same op before each node, or -1
    pos: Ints  # position of each node
    death: Ints  # the node that reads the copy last, for each node and output
    head: Ints  # first node of each op
    tail: Ints  # last node of each op
    runs: Ints  # number of nodes of each op
    free: Ints  # stack of unused node ids
    at: Ints  # the node at each position
    mem: Ints  # memory at each position, without `add` of its block
    add: Ints  # bytes to add in each block
    most: Ints  # most memory of a node of each block; far below 0 in an empty one
    filled: Ints  # number of nodes of each block
    log: Ints  # edits to undo: node and -1 of an insertion; op and following node of a removal
    repeated: Ints  # ops that run several times
    rank: Ints  # the place of each op in `repeated`
    marks: Ints  # of each op: it is in the current set if its mark is the current one
    found: Ints  # room for a list of ops
    stack: Ints  # room for a list of nodes
    best: Ints  # ops of the cheapest sequence within the budget
    counts: Ints  # single numbers, see above
    totals: Floats  # single numbers, see above
    random: Ints  # state of the generator: never 0
    table: Ints  # the address of each array before it


def state_of(graph: DFGraph, *, fixed_order: bool, seed: int, longest: int = 0) -> State:
    """Arrays for a graph, with an empty sequence, and room for several times its ops, or ``longest`` if more.

    With ``fixed_order``, first runs of needed ops stay where they are.
    """
    n, width = graph.n_ops, max([1, *(len(op.outputs) for op in graph.ops)])
    nodes = max(6 * n, longest + 2 * n) + 256
    blocks, log_room, lots = nodes // FILLED + 2, 16 * nodes, _lots(graph)
    reader = np.append(graph.reads.rows, np.full(len(graph.outputs), n))  # the end reads all outputs
    read = np.append(graph.reads.indices, np.array(graph.outputs, dtype=np.int64))
    inner = graph.producer[read] >= 0
    reader, read = reader[inner], read[inner]
    by_tensor = np.argsort(read, kind="stable")
    makes, place, made = graph.makes, np.zeros_like(graph.sizes), np.zeros_like(graph.workspaces)
    place[makes.indices] = np.arange(len(makes.indices)) - makes.indptr[makes.rows]
    np.add.at(made, makes.rows, graph.sizes[makes.indices])
    per_node, per_op = np.zeros(nodes, dtype=np.int64), np.zeros(n + 1, dtype=np.int64)
    state = State(
        cost=np.append(graph.costs, 0.0),
        workspace=np.append(graph.workspaces, 0),
        made=np.append(made, 0),
        once=np.array([*(not op.recomputable for op in graph.ops), True]),
        must=np.append(needed_ops(graph) & fixed_order, True),
        reads_at=np.searchsorted(reader, np.arange(n + 2)),
        reads=read,
        makes_at=np.append(makes.indptr, len(makes.indices)),
        makes=makes.indices.copy(),
        users_at=np.searchsorted(read[by_tensor], np.arange(graph.n_tensors + 1)),
        users=reader[by_tensor],
        reuses_at=np.append(graph.reuses.indptr, len(graph.reuses.indices)),
        reuses=graph.reuses.indices.copy(),
        producer=graph.producer.copy(),
        place=place,
        size=graph.sizes.copy(),
        lots=lots,
        op=per_node.copy(),
        prev=per_node.copy(),
        pos=per_node.copy(),
        death=np.zeros((nodes, width), dtype=np.int64),
        head=per_op - 1,
        tail=per_op - 1,
        runs=per_op.copy(),
        free=np.arange(nodes)[::-1].copy(),
        at=np.zeros(blocks * BLOCK, dtype=np.int64),
        mem=np.zeros(blocks * BLOCK, dtype=np.int64),
        add=np.zeros(blocks, dtype=np.int64),
        most=np.zeros(blocks, dtype=np.int64),
        filled=np.zeros(blocks, dtype=np.int64),
        log=np.zeros((log_room, 2), dtype=np.int64),
        repeated=per_op.copy(),
        rank=per_op.copy(),
        marks=per_op.copy(),
        found=per_op.copy(),
        stack=np.zeros(nodes + len(read), dtype=np.int64),
        best=per_node.copy(),
        counts=np.array([0, nodes, 0, 0, 0, 0, n, nodes, log_room, len(lots), width]),
        totals=np.array([0.0, np.inf, 1e-3 * float(graph.costs.mean()) if n else 0.0, 0.0]),
        random=np.random.SeedSequence(seed).generate_state(1, np.uint64).view(np.int64) | 1,
        table=np.zeros(len(State._fields) - 1, dtype=np.int64),
    )
    state.table[:] = [array.ctypes.data for array in state[:-1]]
    return state


def _lots(graph: DFGraph) -> Ints:
    """Each tensor that a needed op makes: once, and again in proportion to its share of all bytes."""
    made = np.where(np.append(needed_ops(graph), False)[graph.producer], graph.sizes, 0.0)
    copies = (made > 0) + (graph.n_ops * made / max(made.sum(), 1.0)).astype(np.int64)
    return np.repeat(np.arange(graph.n_tensors), copies)

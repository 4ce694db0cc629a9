"""The inputs of ops of a graph in whose memory the ops allocate, because kernels write over inputs that die.

    op v reuses tensor t  ⇔  the group v, with t dying in it, holds no more than without t

A group reuses one tensor at most: of two inputs of a sum, the kernel writes over one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import tensorflow as tf

from checkmate import DFGraph
from checkmate_tf.memory.residency import held_by_group
from checkmate_tf.ops.storages import takes_over
from checkmate_tf.running.settled import Settled

__all__ = ["with_reuses"]


def with_reuses(settled: Settled, workspaces: Mapping[tf.Operation, int]) -> Settled:
    """The same step, its ops with the tensors that they reuse.

    Args:
        settled: the step.
        workspaces: bytes that each op needs only while it runs.
    """
    graph = settled.graph
    ops = list(graph.ops)
    for v, original in enumerate(settled.order):
        group = settled.traced.groups[original]
        if any(op.name in settled.starts for op in group) or not any(map(takes_over, group)):
            continue  # such a sum starts with another input
        held = ops[v].workspace + sum(graph.tensors[t].size for t in ops[v].outputs)
        for t in _candidates(graph, v):
            dying = {t: graph.tensors[t].size}
            if held_by_group(settled.traced, group, workspaces, dying) <= held:
                ops[v] = replace(ops[v], reuses=(t,))
                break
    return replace(settled, graph=replace(graph, ops=tuple(ops)))


def _candidates(graph: DFGraph, v: int) -> Iterator[int]:
    """The inputs of an op that may die, those first that few ops read, of these the latest."""
    movable = {t for t in graph.ops[v].inputs if graph.tensors[t].size} - {*graph.inputs, *graph.outputs}
    yield from sorted(movable, key=lambda t: (len(graph.readers.row(t)), -t))

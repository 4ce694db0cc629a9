"""The cost of ops once they are fused: the share of their time that moves bytes to or from other kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch.fx import Node

from checkmate import DFGraph
from checkmate_torch.fusing.fusible import is_fusible

__all__ = ["fused_prices"]

_LEAST = 0.1
"""Share of its seconds that an op costs at least: it still computes."""


def fused_prices(graph: DFGraph, nodes: Sequence[Node | None]) -> DFGraph:
    """A priced graph with estimated costs of ops in fused kernels.

    A fused kernel takes about as long as it moves bytes. So an op that reads results of fusible ops of its
    pass, and is read by such ops only, costs nearly nothing: this is why a chain of element-wise ops is best
    recomputed inside of its reader.

    Args:
        graph: priced.
        nodes: the FX node of each op.
    """
    fusible = [node is not None and is_fusible(node) for node in nodes]
    size = [tensor.size for tensor in graph.tensors]

    def stays(t: int, v: int) -> bool:
        """Whether a tensor that op v reads comes from the same kernel, as far as the graph shows."""
        maker = int(graph.producer[t])
        return maker >= 0 and fusible[maker] and graph.ops[maker].backward == graph.ops[v].backward

    def is_inner(t: int) -> bool:
        """Whether only fusible ops read a tensor."""
        readers = graph.readers.row(t).tolist()
        return len(readers) > 0 and t not in outputs and all(fusible[r] for r in readers)

    outputs = {*graph.outputs}
    ops = list(graph.ops)
    for v, op in enumerate(ops):
        moved = sum(size[t] for t in (*op.inputs, *op.outputs))
        if not fusible[v] or not moved:
            continue
        outside = sum(size[t] for t in op.inputs if not stays(t, v))
        outside += sum(size[t] for t in op.outputs if not is_inner(t))
        ops[v] = replace(op, cost=op.cost * max(_LEAST, outside / moved))
    return replace(graph, ops=tuple(ops))

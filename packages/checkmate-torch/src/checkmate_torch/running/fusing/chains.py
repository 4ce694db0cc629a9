"""Chains of a joint graph that are always fused: ops whose results only the next op of the chain reads.

    y = f(x), z = g(y), and nothing else reads y ↦ z = (g ∘ f)(x)

A plan then counts no bytes for y. It loses nothing: y is about as large as z or larger, so that keeping z
instead of y is as good.
"""

from __future__ import annotations

import operator

from torch.fx import Node

from checkmate_torch.ops.recompute_rules import is_batch_norm_training
from checkmate_torch.running.fusing.kernel import FusedKernel
from checkmate_torch.running.fusing.measuring import Measuring
from checkmate_torch.running.fusing.windows import gathered
from checkmate_torch.tracing.traced_graph import TracedGraph

__all__ = ["fuse_chains"]

_ABOUT = 1.1
"""An op's outputs may be this many times as large as its reads: a norm's backward adds weight gradients."""


def fuse_chains(traced: TracedGraph, measuring: Measuring) -> bool:
    """Replace chains of a joint graph by kernels, in place, where that is faster; return whether any was.

    ``traced`` has the cost of each op run alone. After a replacement, the joint graph must be traced again.
    """
    graph = traced.graph
    needed = {*graph.outputs, *(t for op in graph.ops for t in op.inputs)}
    kernels = [
        FusedKernel(traced, chain, (), [t for t in graph.ops[chain[-1]].outputs if t in needed])
        for chain in _chains(traced)
    ]
    profiles = measuring.worthy(graph, kernels)
    kept = [kernel for kernel, profile in zip(kernels, profiles, strict=True) if profile is not None]
    items: dict[Node, Node] = {}
    for kernel in kept:
        _replace(traced, kernel, items)
    if kept:
        traced.joint.graph.eliminate_dead_code()  # what is in the kernels now
    return bool(kept)


def _chains(traced: TracedGraph) -> list[list[int]]:
    """The chains of two and more ops; nothing reads what the ops before the last one make."""
    graph, outputs = traced.graph, {*traced.graph.outputs}

    def size(v: int) -> int:
        return sum(graph.tensors[t].size for t in graph.ops[v].outputs)

    def sole_reader(v: int) -> int | None:
        readers = {r for t in graph.ops[v].outputs for r in graph.readers.row(t).tolist()}
        if len(readers) != 1 or not outputs.isdisjoint(graph.ops[v].outputs):
            return None
        (reader,) = readers
        nodes = (traced.nodes[w] for w in (v, reader))
        apart = any(n is not None and is_batch_norm_training(n) for n in nodes)  # a copy is another function
        return reader if size(reader) <= _ABOUT * size(v) and not apart else None

    chains: list[list[int]] = []
    for window in gathered(traced, range(graph.n_ops)):
        before: dict[int, list[int]] = {v: [] for v in window}
        for v in window:
            chain, reader = [*before[v], v], sole_reader(v)
            if reader in before:
                before[reader] += chain
            elif len(chain) > 1:
                chains.append(sorted(chain))
    return chains


def _replace(traced: TracedGraph, kernel: FusedKernel, items: dict[Node, Node]) -> None:
    """Put a kernel in the place of the last op of its chain; the ops stay, and nothing reads them.

    ``items`` maps nodes that kernels have replaced to the kernels' results; this call adds its own.
    """
    graph = traced.joint.graph
    last = traced.node_of(kernel.ops[-1])
    sources = tuple(items.get(source, source) for source in kernel.sources)
    with graph.inserting_before(last):
        call = graph.create_node("call_function", kernel, sources, name=f"{last.name}_fused")
        call.meta.update(last.meta, val=tuple(node.meta["val"] for node in kernel.outputs))
        for k, node in enumerate(kernel.outputs):
            item = graph.call_function(operator.getitem, (call, k))
            item.meta.update(node.meta)
            items[node] = item
            node.replace_all_uses_with(item)

"""A training chain: forward ops f₁ … f_p in a row, and backward blocks b_{p+1}, b_p … b₁, one for each layer.

f_i reads only what f_{i−1} makes, graph inputs apart; the *state* x_i is what f_{i+1} reads of it. A block is
a list of ops, perhaps empty, that run one after the other. The ops of b_q read graph inputs, outputs of
earlier backward ops, and of the forward pass only x_{q−1} (the layer's input), x_q (its output) and the other
outputs of f_q (masks, means). b_{p+1} has no forward op: it is the turn, where the loss is.

Only reads, and whether ops may run again, decide what is a chain; names and flags don't. The row of forward
ops ends with the last one that has a reader other than its successor. Ops that no graph output needs are left
out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from checkmate import DFGraph, Problem, Solution, Status
from checkmate.analysis import needed_ops
from checkmate.heuristics import cheapest

__all__ = ["Chain", "recognise", "solve_chain"]

_LEAST_SHARE = 4
"""At least one op in this many is in the row, or the graph is no chain: a training step has a forward op and
at most three backward ops (of the input, the weight, the bias) for each layer."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chain:
    """A graph read as a chain.

    Attributes:
        graph: the graph.
        forward: f₁ … f_p, op indices.
        blocks: b₁ … b_{p+1}, op indices in the order in which they run.
        states: x₀ … x_p, tensor indices; x₀ is empty, as the chain starts from graph inputs.
    """

    graph: DFGraph
    forward: tuple[int, ...]
    blocks: tuple[tuple[int, ...], ...]
    states: tuple[tuple[int, ...], ...]

    @property
    def length(self) -> int:
        """p, the number of forward ops."""
        return len(self.forward)

    @property
    def order(self) -> tuple[int, ...]:
        """The needed ops in base order: forward ops, then the blocks from the last to the first."""
        return (*self.forward, *(v for block in reversed(self.blocks) for v in block))


def recognise(graph: DFGraph) -> Chain | str:
    """Read a graph as a chain, or return the reason why it is no chain. Takes time linear in the graph.

    >>> from checkmate.generators import chain, transformer
    >>> recognise(chain(3)).blocks
    ((), (6,), (5,), (3, 4))
    >>> recognise(transformer(2))
    "only the first 3 of 67 ops are in a row: op 3 'layer0.attention.key' does not continue it"
    """
    order = np.flatnonzero(needed_ops(graph)).tolist()
    maker = {t: i for i, v in enumerate(order, start=1) for t in graph.ops[v].outputs}
    reads = [{t: maker[t] for t in graph.ops[v].inputs if t in maker} for v in order]  # by their makers
    row, p = _row(graph, order, reads)
    if p == 0:
        return "no op in a row from the start is read by anything but the op after it"
    if p * _LEAST_SHARE < len(order):
        follows = graph.op_label(order[row]) if row < len(order) else "nothing"
        return f"only the first {p} of {len(order)} ops are in a row: {follows} does not continue it"
    forward, rest = tuple(order[:p]), dict(zip(order[p:], reads[p:], strict=True))
    states = _states([graph.ops[v].outputs for v in forward], reads)
    blocks = _blocks(graph, rest, states)
    if isinstance(blocks, str):
        return blocks
    return Chain(graph=graph, forward=forward, blocks=tuple(map(tuple, blocks)), states=tuple(states))


def _row(graph: DFGraph, order: Sequence[int], reads: Sequence[dict[int, int]]) -> tuple[int, int]:
    """How many ops, from the first on, read only their predecessor and may run again; and p.

    p is the last of them that any other op than its successor reads; 0 if there is none.
    """
    row = 0
    while row < len(order) and graph.ops[order[row]].recomputable and {*reads[row].values(), 0} == {row, 0}:
        row += 1
    kept = (i for k, read in enumerate(reads, start=1) for i in read.values() if k != i + 1)
    return row, max((i for i in kept if i <= row), default=0)


def _states(outputs: Sequence[Sequence[int]], reads: Sequence[dict[int, int]]) -> list[tuple[int, ...]]:
    """x₀ … x_p, from the outputs of f₁ … f_p."""
    states = [(), *(tuple(t for t in made if t in reads[i]) for i, made in enumerate(outputs, start=1))]
    states[-1] = states[-1] or tuple(t for t in outputs[-1] if any(t in read for read in reads))
    return states


def _blocks(
    graph: DFGraph, rest: dict[int, dict[int, int]], states: Sequence[tuple[int, ...]]
) -> list[list[int]] | str:
    """The blocks, from the ops behind the row and the tensors that each reads; or why there are none."""
    p = len(states) - 1
    blocks: list[list[int]] = [[] for _ in states]
    layer = p + 1
    for v, read in rest.items():
        row_reads = {t: i for t, i in read.items() if i <= p}
        if row_reads:  # the last layer up to the current one that has all of these
            top = max(row_reads.values())
            layer = min(layer, top + (row_reads.keys() <= set(states[top])))
        for t, i in row_reads.items():
            if i != layer and t not in states[layer - 1]:
                return (
                    f"{graph.op_label(v)} reads {graph.tensor_label(t)}, which belongs to layer {i}, "
                    f"where the backward pass is at layer {layer}"
                )
        blocks[layer - 1].append(v)
    return blocks


def solve_chain(problem: Problem, schedules: Callable[[Problem, Chain], Iterable[Sequence[int]]]) -> Solution:
    """Answer with the base order if it fits, else with the cheapest of ``schedules``; unknown if no chain."""
    once = cheapest(problem, [np.flatnonzero(needed_ops(problem.graph)).tolist()])
    if once.status is not Status.UNKNOWN:
        return once
    chain = recognise(problem.graph)
    if isinstance(chain, str):
        return Solution.unknown(problem, reason=f"the graph is no chain: {chain}")
    return cheapest(problem, schedules(problem, chain))

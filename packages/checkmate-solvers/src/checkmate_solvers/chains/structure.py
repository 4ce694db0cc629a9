"""A training chain: forward ops f₁ … f_p in a row, and backward blocks b_{p+1}, b_p … b₁, one for each layer.

f_i reads only what f_{i−1} makes, graph inputs apart; the *state* x_i is what f_{i+1} reads of it. A block is
a list of ops, perhaps empty, that run one after the other. The ops of b_q read graph inputs, outputs of
earlier backward ops, and of the forward pass only x_{q−1} (the layer's input), x_q (its output) and the other
outputs of f_q (masks, means). b_{p+1} has no forward op: it is the turn, where the loss is.

Only reads, and whether ops may run again, decide this: names and flags are not looked at. The row of forward
ops ends with the last one that has a reader other than its successor. Ops that no graph output needs are left
out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from checkmate import DFGraph, Solution, Status
from checkmate.analysis import needed_ops

__all__ = ["Chain", "NoChain", "explained", "recognise"]

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


@dataclass(frozen=True, slots=True)
class NoChain:
    """Why a graph is no chain."""

    reason: str


def recognise(graph: DFGraph) -> Chain | NoChain:
    """Read a graph as a chain, or give the reason why it is none; in time linear in the graph.

    >>> from checkmate.generators import chain, transformer
    >>> recognise(chain(3)).blocks
    ((), (6,), (5,), (3, 4))
    >>> recognise(transformer(2)).reason
    "only the first 3 of 67 ops are in a row: op 3 'layer0.attention.key' does not continue it"
    """
    order = np.flatnonzero(needed_ops(graph)).tolist()
    reading = _Reading(graph, order)
    longest = reading.row()
    p = max((i for i in range(1, longest + 1) if reading.is_kept(i)), default=0)
    if p == 0:
        return NoChain("no op in a row from the start is read by anything but the op after it")
    if p * _LEAST_SHARE < len(order):
        follows = graph.op_label(order[longest]) if longest < len(order) else "nothing"
        return NoChain(f"only the first {p} of {len(order)} ops are in a row: {follows} does not continue it")
    states = ((), *(reading.state(i) for i in range(1, p + 1)))
    blocks: list[list[int]] = [[] for _ in range(p + 1)]
    layer = p + 1
    for v in order[p:]:
        following = reading.layer(v, layer, states)
        if isinstance(following, NoChain):
            return following
        layer = following
        blocks[layer - 1].append(v)
    return Chain(graph=graph, forward=tuple(order[:p]), blocks=tuple(map(tuple, blocks)), states=states)


def explained(solution: Solution) -> Solution:
    """The same solution; an unknown one with the reason, if the graph is no chain."""
    read = recognise(solution.problem.graph) if solution.status is Status.UNKNOWN else None
    if isinstance(read, NoChain):
        return Solution.unknown(solution.problem, reason=f"the graph is no chain: {read.reason}")
    return solution


class _Reading:
    """The needed ops in base order, numbered from 1, and the readers of each tensor among them."""

    def __init__(self, graph: DFGraph, order: list[int]) -> None:
        self.graph, self.order = graph, order
        self.number = {v: i for i, v in enumerate(order, start=1)}
        rows = (graph.readers.row(t).tolist() for t in range(graph.n_tensors))
        self.readers = [[self.number[v] for v in row if v in self.number] for row in rows]

    def row(self) -> int:
        """The number of ops from the first on that read only their predecessor, and may run again."""
        for i, v in enumerate(self.order):
            sources = {int(self.graph.producer[t]) for t in self.graph.ops[v].inputs} - {-1}
            if sources != ({self.order[i - 1]} if i else set()) or not self.graph.ops[v].recomputable:
                return i
        return len(self.order)

    def is_kept(self, i: int) -> bool:
        """Whether an op other than i + 1 reads an output of op i."""
        return any(k != i + 1 for t in self._outputs(i) for k in self.readers[t])

    def state(self, i: int) -> tuple[int, ...]:
        """The outputs of op i that op i + 1 reads; if it reads none, all outputs that are read."""
        read = [t for t in self._outputs(i) if self.readers[t]]
        return tuple(t for t in read if i + 1 in self.readers[t]) or tuple(read)

    def layer(self, v: int, current: int, states: Sequence[tuple[int, ...]]) -> int | NoChain:
        """The layer of backward op ``v``: the last up to ``current`` that has all of its inputs."""
        graph, p = self.graph, len(states) - 1
        reads = [(t, self.number.get(int(graph.producer[t]), p + 1)) for t in graph.ops[v].inputs]
        reads = [(t, i) for t, i in reads if i <= p]
        if not reads:
            return current
        top = max(i for _, i in reads)
        is_input = all(i == top and t in states[i] for t, i in reads)
        layer = min(current, top + 1 if is_input else top)
        for t, i in reads:
            if i != layer and not (i == layer - 1 and t in states[i]):
                return NoChain(
                    f"{graph.op_label(v)} reads {graph.tensor_label(t)}, which belongs to layer {i}, "
                    f"where the backward pass is at layer {layer}"
                )
        return layer

    def _outputs(self, i: int) -> tuple[int, ...]:
        return self.graph.ops[self.order[i - 1]].outputs

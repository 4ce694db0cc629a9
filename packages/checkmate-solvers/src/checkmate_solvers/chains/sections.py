"""Sections of a chain, and the bytes of each: the numbers that the dynamic programme works with.

A section is a few layers in a row, or just one. Between two sections the chain can be checkpointed; inside
one, either nothing is kept, or everything that its backward ops read. The last section is the turn: it has
backward ops only. Bytes are counted as the simulator does: tensor by tensor, freed as early as is legal.

Each backward op runs once, in order, so there is no choice about its outputs: the backward pass holds a fixed
number of bytes, r, when it comes to a section. Graph outputs that the forward pass makes count as held from
the start, which is the case from their first run on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from checkmate import DFGraph
from checkmate_solvers.chains.structure import Chain

__all__ = ["Section", "Sections", "sections"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A few layers in a row, with input state x and output state y.

    Attributes:
        forward: their forward ops; empty for the turn.
        backward: their backward ops, in the order in which they run.
        cost: of ``forward``.
        state: bytes of y; 0 for the turn.
        reads_input: whether a backward op reads x.
        keeps_output: whether a backward op reads y.
        saved: bytes of the outputs of ``forward`` that the backward ops read, y left out.
        saves: whether they read any of it, y included.
        walk: peak of ``forward`` if only y is kept of it, x being held and not counted.
        leave: the same, x being counted, and freed as soon as it has been read.
        save: peak of ``forward`` if y and the saved outputs are kept, x being held and not counted.
        back: peak of ``backward``, r counted, x not; r alone if there is no backward op.
        finish: the same, x being counted until it has been read for the last time.
        gradients: r, bytes that the backward pass holds when it comes to this section.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    cost: float
    state: int
    reads_input: bool
    keeps_output: bool
    saved: int
    saves: bool
    walk: int
    leave: int
    save: int
    back: int
    finish: int
    gradients: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sections:
    """All sections, first to last, and the bytes that no choice can free."""

    rows: tuple[Section, ...]
    base_size: int

    @property
    def unit(self) -> int:
        """The greatest common divisor of all byte counts of all sections."""
        numbers = ("state", "saved", "walk", "leave", "save", "back", "finish", "gradients")
        return math.gcd(*(getattr(row, number) for row in self.rows for number in numbers)) or 1


def sections(chain: Chain, cuts: Sequence[int]) -> Sections:
    """Cut a chain behind the layers ``cuts``: increasing numbers from 1 on, of which the last is p."""
    graph = chain.graph
    permanent = {t for v in chain.forward for t in graph.ops[v].outputs}.intersection(graph.outputs)
    held = [tensor.size for tensor in graph.tensors]
    for t in permanent.union(graph.inputs):
        held[t] = 0
    bytes_of = _Bytes(graph, held)
    rows: list[Section] = []
    gradients = bytes_of.gradients(chain)
    for start, stop in reversed(list(zip([0, *cuts], [*cuts, chain.length + 1], strict=True))):
        backward = tuple(v for block in reversed(chain.blocks[start:stop]) for v in block)
        rows.append(_section(chain, bytes_of, gradients, start, min(stop, chain.length), backward))
        gradients = gradients[len(backward) :]
    base_size = graph.base_size + sum(graph.tensors[t].size for t in permanent)
    return Sections(rows=tuple(reversed(rows)), base_size=base_size)


def _section(
    chain: Chain,
    bytes_of: _Bytes,
    gradients: Sequence[tuple[int, int]],
    start: int,
    stop: int,
    backward: tuple[int, ...],
) -> Section:
    """Layers ``start`` + 1 … ``stop``; none for the turn. ``gradients`` start at its first backward op."""
    forward = chain.forward[start:stop]
    x, y = set(chain.states[start]), set(chain.states[stop]) if forward else set()
    made = {t for v in forward for t in chain.graph.ops[v].outputs}
    read = {t for v in backward for t in chain.graph.ops[v].inputs}
    saved = read & made
    return Section(
        forward=forward,
        backward=backward,
        cost=math.fsum(chain.graph.ops[v].cost for v in forward),
        state=bytes_of.total(y),
        reads_input=bool(x & read),
        keeps_output=bool(y & read),
        saved=bytes_of.total(saved - y),
        saves=bool(saved),
        walk=bytes_of.peak(forward, start=set(), end=y),
        leave=bytes_of.peak(forward, start=x, end=y),
        save=bytes_of.peak(forward, start=set(), end=saved | y),
        back=bytes_of.peak_behind(backward, saved, gradients),
        finish=bytes_of.peak_behind(backward, saved | (x & read), gradients),
        gradients=gradients[0][0],
    )


@dataclass(frozen=True, slots=True)
class _Bytes:
    """Memory of ops that run in a row; ``held`` are the bytes of each tensor once it is made."""

    graph: DFGraph
    held: list[int]

    def total(self, tensors: Iterable[int]) -> int:
        return sum(self.held[t] for t in tensors)

    def fresh(self, v: int) -> int:
        """Bytes that op ``v`` adds while it runs."""
        op = self.graph.ops[v]
        return sum(self.graph.tensors[t].size for t in op.outputs) + op.workspace

    def peak(self, ops: Sequence[int], *, start: set[int], end: set[int]) -> int:
        """Peak of running each op once: ``start`` is resident at first, and ``end`` is kept."""
        last = {t: k for k, v in enumerate(ops) for t in self.graph.ops[v].inputs}
        resident, worst = self.total(start), 0
        counted = set(start)
        for k, v in enumerate(ops):
            op = self.graph.ops[v]
            worst = max(worst, resident + self.fresh(v))
            counted.update(op.outputs)
            resident += self.total(op.outputs)
            dying = {t for t in (*op.inputs, *op.outputs) if t in counted and last.get(t, k) == k} - end
            resident -= self.total(dying)
            counted -= dying
        return worst

    def gradients(self, chain: Chain) -> list[tuple[int, int]]:
        """For each backward op in order: bytes that the backward pass holds before it, and while it runs.

        One more entry is for the end.
        """
        ops = [v for block in reversed(chain.blocks) for v in block]
        last = {t: k for k, v in enumerate(ops) for t in self.graph.ops[v].inputs}
        last.update((t, len(ops)) for t in self.graph.outputs)
        dying: list[int] = [0] * (len(ops) + 1)
        resident, rows = 0, []
        for k, v in enumerate(ops):
            rows.append((resident, resident + self.fresh(v)))
            for t in self.graph.ops[v].outputs:
                resident += self.held[t]
                dying[last.get(t, k)] += self.held[t]
            resident -= dying[k]
        return [*rows, (resident, resident)]

    def peak_behind(self, ops: Sequence[int], saved: set[int], gradients: Sequence[tuple[int, int]]) -> int:
        """Peak of backward ops; each tensor of ``saved`` is freed after its last read."""
        last = {t: k for k, v in enumerate(ops) for t in self.graph.ops[v].inputs if t in saved}
        resident, worst = self.total(saved), gradients[0][0]
        for k, v in enumerate(ops):
            worst = max(worst, resident + gradients[k][1])
            resident -= self.total(t for t in self.graph.ops[v].inputs if last.get(t) == k)
        return worst

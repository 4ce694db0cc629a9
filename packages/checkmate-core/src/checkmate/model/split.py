"""An op in pieces: a graph in which a group of ops runs once for each part of one dimension.

Let a dimension have N rows, cut into k ranges, and let G be a *group* of ops. In the split graph each op of G
is k *pieces*, one for each range. A rule for each output says what its pieces make:

- ``row``: the output has the dimension, and piece i makes its rows of range i. If only ops of G read it,
  each piece is a tensor of its own. Otherwise the pieces write, one after another, into one whole tensor.
- ``sum``: the op contracts the dimension, and piece i adds its part to what the pieces before it made.

A tensor that several pieces write has k versions of full size. Piece i > 0 reads version i − 1, makes version
i and *reuses* version i − 1, so that memory is held once.

**Order.** Each op v has a level λ(v): 0 at first, and at least λ(u) where v reads from u, plus one where u is
in G and v can only run after all pieces of u: v is not in G, or the tensor is a sum. Ops of G on one level
that pass rows to each other are a *segment*. It runs contiguously: all its ops on range 0, then all on
range 1, …. Contracting segments makes no cycle: λ never falls along an edge, rises on every way that leaves
G, and an edge within G on one level stays within its segment.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Literal

from checkmate.errors import GraphError
from checkmate.model.graph import DFGraph, Op, Tensor

__all__ = ["Group", "Part", "Piece", "Rule", "SplitGraph", "split"]

Rule = Literal["row", "sum"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Ops that are cut along one dimension.

    An op of the group that reads a row tensor of another one needs only its own rows of it. All other tensors
    are read whole: the executor takes rows of them where they have the dimension.

    Attributes:
        rows: length N ≥ 1 of the dimension.
        rules: op → a rule for each of its outputs, ``"row"`` or ``"sum"``.
        fixed_costs: op → the part of its cost that every piece pays in full, such as a kernel's launch or
            reading whole operands; default 0. The rest is divided by rows.
        barrier: an op outside of the group, such as the loss boundary; ops of the group that come after it in
            base order are never in a segment with ops before it. None = no such op.

    Raises:
        GraphError: on a number of rows below 1, no ops, an unknown rule, or a fixed cost of another op.
    """

    rows: int
    rules: Mapping[int, tuple[Rule, ...]]
    fixed_costs: Mapping[int, float] = field(default_factory=dict)
    barrier: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", {v: tuple(rules) for v, rules in sorted(self.rules.items())})
        object.__setattr__(self, "fixed_costs", dict(self.fixed_costs))
        if self.rows < 1:
            raise GraphError(f"group: rows is {self.rows}, must be at least 1")
        if not self.rules:
            raise GraphError("group: it has no ops; give at least one rule")
        for v, rules in self.rules.items():
            if not rules:
                raise GraphError(f"group: op {v} has no rule, so nothing of it is cut; leave it out")
            for rule in rules:
                if rule not in ("row", "sum"):
                    raise GraphError(f"group: op {v} has the rule {rule!r}, must be 'row' or 'sum'")
        if strange := self.fixed_costs.keys() - self.rules.keys():
            raise GraphError(f"group: fixed_costs has op {min(strange)}, which has no rule")
        if self.barrier in self.rules:
            raise GraphError(f"group: the barrier, op {self.barrier}, has a rule; it can't be cut itself")


@dataclass(frozen=True, slots=True)
class Piece:
    """What an op of a split graph runs: op ``op`` of its source, on range ``index`` of rows; None = whole."""

    op: int
    index: int | None


@dataclass(frozen=True, slots=True)
class Part:
    """What a tensor of a split graph holds of tensor ``tensor`` of the source.

    Attributes:
        tensor: index in the source.
        index: the range of rows with whose piece it was made; None = the tensor is not cut.
        whole: it has the full size. With an index it is the version after that piece: later rows are not
            written yet, or later parts not added; the last version is the whole tensor.
    """

    tensor: int
    index: int | None
    whole: bool


@dataclass(frozen=True, kw_only=True, repr=False)
class SplitGraph:
    """A graph in which the ops of a group are pieces.

    Attributes:
        graph: the split graph.
        source: the graph that was split.
        group: the ops that were cut.
        rows: the rows of each piece.
        pieces: for each op of ``graph``, what it runs.
        parts: for each tensor of ``graph``, what it holds.
    """

    graph: DFGraph
    source: DFGraph
    group: Group
    rows: tuple[range, ...]
    pieces: tuple[Piece, ...]
    parts: tuple[Part, ...]

    @cached_property
    def runs(self) -> tuple[tuple[int, ...], ...]:
        """For each op of ``source`` its ops in ``graph``, in the order of the pieces."""
        runs: list[list[int]] = [[] for _ in self.source.ops]
        for i, piece in enumerate(self.pieces):
            runs[piece.op].append(i)
        return tuple(map(tuple, runs))

    def moved(self, group: Group) -> Group:
        """A group of ops of ``source`` as a group of ops of ``graph``, to be cut next.

        Raises:
            GraphError: if one of its ops is already cut.
        """
        return Group(
            rows=group.rows,
            rules={self._whole(v): rules for v, rules in group.rules.items()},
            fixed_costs={self._whole(v): cost for v, cost in group.fixed_costs.items()},
            barrier=None if group.barrier is None else self._whole(group.barrier),
        )

    def _whole(self, v: int) -> int:
        if not 0 <= v < self.source.n_ops or len(self.runs[v]) != 1:
            raise GraphError(
                f"group: {self.source.op_label(v)} is already in pieces, or not in the graph; "
                "cut an op in one group only"
            )
        return self.runs[v][0]

    def __repr__(self) -> str:
        return f"<SplitGraph: {len(self.group.rules)} ops in {len(self.rows)} pieces, {self.graph!r}>"


def split(graph: DFGraph, group: Group, pieces: int | Sequence[int]) -> SplitGraph:
    """Cut the ops of a group into pieces.

    Each piece keeps the op's flags and its whole workspace. Its cost is fixed + (cost − fixed) · n / N, for n
    of N rows. Where each piece of a row tensor of s bytes is a tensor, it has ⌊s·end/N⌋ − ⌊s·start/N⌋ bytes.
    A piece reuses an input, as its op does, only if it and all outputs are such tensors; ops that are not cut
    keep what they reuse. The base order is a topological order in which segments are contiguous, by their
    first op in the old base order. One piece is the identity.

    Args:
        graph: the graph.
        group: what is cut, and by which rules.
        pieces: the number of pieces k, each of ⌈N/k⌉ rows and the last of the rest (which can make them
            fewer than k); or the number of rows of each piece, N together.

    Raises:
        GraphError: if the group does not fit the graph, or the pieces don't fit the rows.

    >>> graph = DFGraph.from_nodes(cost=[4, 4], size=[8, 2], deps=[[], [0]])
    >>> halves = split(graph, Group(rows=4, rules={0: ("row",), 1: ("sum",)}), 2)
    >>> [piece.op for piece in halves.pieces], [t.size for t in halves.graph.tensors]
    ([0, 1, 0, 1], [4, 4, 2, 2])
    """
    _check(graph, group)
    rows = _ranges(group.rows, pieces)
    if len(rows) == 1:
        return SplitGraph(
            graph=graph,
            source=graph,
            group=group,
            rows=rows,
            pieces=tuple(Piece(v, None) for v in range(graph.n_ops)),
            parts=tuple(Part(t, None, True) for t in range(graph.n_tensors)),
        )
    return _Cut(graph, group, rows).graph()


def _check(graph: DFGraph, group: Group) -> None:
    """Raise GraphError unless the group is one of this graph."""
    barrier = () if group.barrier is None else (group.barrier,)
    for v in (*group.rules, *barrier):
        if not 0 <= v < graph.n_ops:
            raise GraphError(f"group: it has op {v}, but there are {graph.n_ops} ops")
    for v, rules in group.rules.items():
        op = graph.ops[v]
        if len(rules) != len(op.outputs):
            raise GraphError(
                f"group: {graph.op_label(v)} makes {len(op.outputs)} tensors, but has {len(rules)} rules; "
                "give one for each"
            )
        if not 0 <= group.fixed_costs.get(v, 0) <= op.cost:
            raise GraphError(
                f"group: {graph.op_label(v)} has the fixed cost {group.fixed_costs[v]}, "
                f"must be from 0 to its cost, {op.cost}"
            )


def _ranges(rows: int, pieces: int | Sequence[int]) -> tuple[range, ...]:
    """The rows of each piece."""
    if isinstance(pieces, int):
        if not 1 <= pieces <= rows:
            raise GraphError(f"split: {pieces} pieces of {rows} rows; give a number from 1 to {rows}")
        most = -(-rows // pieces)
        return tuple(range(start, min(start + most, rows)) for start in range(0, rows, most))
    if min(pieces, default=0) < 1 or sum(pieces) != rows:
        raise GraphError(f"split: pieces of {list(pieces)} rows; each needs one, and {rows} together")
    return tuple(range(end - n, end) for n, end in zip(pieces, accumulate(pieces), strict=True))


class _Cut:
    """One split in the making.

    ``rule`` has the tensors that are cut, ``own`` those of which each piece is a tensor. Tensor t of the
    source becomes the tensors from ``first[t]`` on, one, or one for each piece. ``segment[v]`` is the first
    op in the segment of op v.
    """

    def __init__(self, source: DFGraph, group: Group, rows: tuple[range, ...]) -> None:
        self.source, self.group, self.ranges = source, group, rows
        self.producer: list[int] = source.producer.tolist()
        self.rule = {
            t: rule
            for v, rules in group.rules.items()
            for t, rule in zip(source.ops[v].outputs, rules, strict=True)
        }
        outside = {t for v, op in enumerate(source.ops) if v not in group.rules for t in op.inputs}
        self.own = {t for t, rule in self.rule.items() if rule == "row"} - outside - set(source.outputs)
        self.first: list[int] = []
        count = 0
        for t in range(source.n_tensors):
            self.first.append(count)
            count += len(rows) if t in self.rule else 1
        self.segment = self._segments(self._levels())

    def graph(self) -> SplitGraph:
        """The split graph."""
        source = self.source
        tensors, parts, ops, pieces = [], [], [], []
        for t in range(source.n_tensors):
            for tensor, part in self._tensors(t):
                tensors.append(tensor)
                parts.append(part)
        for v, index in self._order():
            ops.append(self._whole_op(v) if index is None else self._piece(v, index))
            pieces.append(Piece(v, index))
        graph = replace(
            source,
            ops=tuple(ops),
            tensors=tuple(tensors),
            inputs=tuple(self.first[t] for t in source.inputs),
            outputs=tuple(map(self._last, source.outputs)),
        )
        return SplitGraph(
            graph=graph,
            source=source,
            group=self.group,
            rows=self.ranges,
            pieces=tuple(pieces),
            parts=tuple(parts),
        )

    def _levels(self) -> list[int]:
        """λ of each op."""
        inside, levels, least = self.group.rules, [0] * self.source.n_ops, 0
        for v, op in enumerate(self.source.ops):
            if v == self.group.barrier:
                least = max((levels[u] + 1 for u in inside if u < v), default=0)
            level = least if v in inside else 0
            for t in op.inputs:
                u = self.producer[t]
                if u >= 0:
                    waits = u in inside and (v not in inside or self.rule[t] == "sum")
                    level = max(level, levels[u] + waits)
            levels[v] = level
        return levels

    def _segments(self, levels: list[int]) -> list[int]:
        """The first op in the segment of each op; an op outside of the group is alone.

        Ops on one level that read the same tensors of pieces of an earlier level are together as well: then
        one recomputation of each piece is enough for all.
        """
        first = list(range(self.source.n_ops))

        def find(v: int) -> int:
            while first[v] != v:
                first[v] = first[first[v]]
                v = first[v]
            return v

        touched: dict[tuple[int, int], int] = {}
        for v in self.group.rules:
            op = self.source.ops[v]
            reads = [t for t in op.inputs if self.rule.get(t) == "row"]
            near = [t for t in reads if t in self.own or levels[self.producer[t]] == levels[v]]
            for t in (*near, *op.outputs):
                a, b = find(touched.setdefault((t, levels[v]), v)), find(v)
                first[max(a, b)] = min(a, b)
        return [find(v) for v in range(len(first))]

    def _order(self) -> Iterator[tuple[int, int | None]]:
        """The ops of the split graph in base order, each with the index of its piece."""
        members: dict[int, list[int]] = {}
        waits: dict[int, set[int]] = {}
        followers: dict[int, list[int]] = {}
        for v, op in enumerate(self.source.ops):
            s = self.segment[v]
            members.setdefault(s, []).append(v)
            waits.setdefault(s, set()).update(
                self.segment[self.producer[t]] for t in op.inputs if self.producer[t] >= 0
            )
        for s, before in waits.items():
            before.discard(s)
            for u in before:
                followers.setdefault(u, []).append(s)
        left = {s: len(before) for s, before in waits.items()}
        ready = [s for s, n in left.items() if not n]
        while ready:
            s = heapq.heappop(ready)
            if s in self.group.rules:
                yield from ((v, i) for i in range(len(self.ranges)) for v in members[s])
            else:
                yield s, None
            for follower in followers.get(s, ()):
                left[follower] -= 1
                if not left[follower]:
                    heapq.heappush(ready, follower)

    def _tensors(self, t: int) -> Iterator[tuple[Tensor, Part]]:
        """The tensors that tensor ``t`` of the source becomes."""
        tensor, total = self.source.tensors[t], self.group.rows
        if t not in self.rule:
            yield tensor, Part(t, None, True)
            return
        for i, rows in enumerate(self.ranges):
            if t in self.own:
                size = tensor.size * rows.stop // total - tensor.size * rows.start // total
                name = f"{tensor.name}[{rows.start}:{rows.stop}]"
                yield Tensor(name=name, size=size), Part(t, i, False)
            else:
                name = tensor.name if rows.stop == total else f"{tensor.name}[:{rows.stop}]"
                yield Tensor(name=name, size=tensor.size), Part(t, i, True)

    def _whole_op(self, v: int) -> Op:
        op = self.source.ops[v]
        return replace(
            op,
            inputs=tuple(map(self._last, op.inputs)),
            outputs=tuple(map(self._last, op.outputs)),
            reuses=tuple(map(self._last, op.reuses)),
        )

    def _piece(self, v: int, i: int) -> Op:
        op, rows = self.source.ops[v], self.ranges[i]
        reads = {t: self._read(t, v, i) for t in op.inputs}
        before = [self.first[t] + i - 1 for t in op.outputs if t not in self.own] if i else []
        separate = self.own.issuperset(op.outputs)
        fixed = self.group.fixed_costs.get(v, 0.0)
        return replace(
            op,
            name=f"{op.name}[{rows.start}:{rows.stop}]",
            inputs=(*reads.values(), *before),
            outputs=tuple(self.first[t] + i for t in op.outputs),
            cost=fixed + (op.cost - fixed) * len(rows) / self.group.rows,
            reuses=(*(reads[t] for t in op.reuses if separate and t in self.own), *before),
        )

    def _read(self, t: int, v: int, i: int) -> int:
        """The tensor that piece ``i`` of op ``v`` reads for tensor ``t``."""
        if t in self.own:
            return self.first[t] + i
        if self.rule.get(t) == "row" and self.segment[self.producer[t]] == self.segment[v]:
            return self.first[t] + i
        return self._last(t)

    def _last(self, t: int) -> int:
        """The whole of tensor ``t``: after its last piece if it is cut."""
        return self.first[t] + (len(self.ranges) - 1 if t in self.rule else 0)

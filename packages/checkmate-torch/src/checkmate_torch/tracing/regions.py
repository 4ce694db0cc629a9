"""Find the parts of a joint graph that can run in pieces: around the tensors that set the floor.

A *region* is grown from one large tensor and some neighbouring dimensions of it, its rows. It takes in the
ops that make and read the tensor, as far as rules cut them (:mod:`checkmate_torch.ops.cut_rules`), then those
that make and read other tensors with these rows that are nearly as large; it ends at small tensors. The
logits of a language model, for example, lead to the product that makes them, the losses of all tokens, the
gradient of the logits, and the products that read it.
"""

from __future__ import annotations

import math
import operator
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from torch.fx import Node

from checkmate.analysis import working_sets
from checkmate_torch.ops.cut_rules import SUM, Cut, CutOp, Size, is_view, roles, shape_of
from checkmate_torch.ops.recompute_rules import is_random, may_run_twice
from checkmate_torch.ops.sizes import largest, planning_for_present
from checkmate_torch.private import formula
from checkmate_torch.tracing.traced_graph import TracedGraph

__all__ = ["Part", "Region", "find_regions", "grouped", "results_of"]

_WIDE = 0.4
"""A region grows through tensors of at least this share of the bytes of the one that it began with."""
_MOST_REGIONS = 128
_ROWS_THAT_CHANGE = 4
"""The fewest rows of a piece of a length that may change, now: for PyTorch 0 and 1 are special cases."""


class Part(NamedTuple):
    """A part of the rows: of the first dimensions one index each, and a part of the next one.

    Attributes:
        outer: indices in the first dimensions.
        number: of n nearly equal parts of the next dimension, this one; all later dimensions are whole.
        n: their number.
    """

    outer: tuple[int, ...]
    number: int
    n: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Region:
    """Nodes of a joint graph that can run in pieces.

    Attributes:
        name: of the op around which it was grown.
        traced: the graph.
        ops: node → how it is cut; views included.
        cuts: the rows of each operand and result that has them.
    """

    name: str
    traced: TracedGraph
    ops: Mapping[Node, CutOp]
    cuts: Mapping[Node, Cut]

    @cached_property
    def rows(self) -> int:
        """Their number; if it may change, the present one."""
        return math.prod(map(self._number, self.lengths))

    @cached_property
    def lengths(self) -> tuple[Size, ...]:
        """The lengths of the dimensions that are cut, outermost first: those of the finest cut."""
        cuts = [tuple(n for n in cut.sizes if n != 1) for cut in self.cuts.values()]
        return max(cuts, key=lambda sizes: len(sizes))

    def _number(self, length: Size) -> int:
        return self._numbers.get(length, length)

    @cached_property
    def _numbers(self) -> Mapping[Size, int]:
        """For each length that may change, its present value."""
        sizes = (n for x in self.cuts for n in x.meta["val"].shape if isinstance(n, torch.SymInt))
        with planning_for_present():
            return {formula(n): largest(n) for n in sizes}

    @property
    def changes(self) -> bool:
        """Whether the number of rows may change."""
        return not all(isinstance(length, int) for length in self.lengths)

    @cached_property
    def rules(self) -> Mapping[int, tuple[Literal["row", "sum"], ...]]:
        """Its ops in the DFGraph, with the rule of each output."""
        rules: dict[int, tuple[Literal["row", "sum"], ...]] = {}
        for v, node in enumerate(self.traced.nodes):
            if node is not None and node in self.ops:
                made = [role for role in self.ops[node].results if role is not None]
                rules[v] = tuple("sum" if role == SUM else "row" for role in made)
        return rules

    @cached_property
    def kind(self) -> object:
        """Equal for regions that do the same with other numbers, as in the blocks of a network."""
        return tuple(
            (str(node.target), *(tuple(self.cuts[x].sizes) for x in op.operands), *_shapes(node))
            for node, op in sorted(self.ops.items(), key=lambda pair: pair[0])
        )

    def parts(self, count: int) -> tuple[Part, ...]:
        """About ``count`` parts of the rows, in their order; a single one if they can't be divided."""
        if any(grouped(cut.sizes, self.lengths) is None for cut in self.cuts.values()):
            return (Part((), 0, 1),)
        return tuple(self._parts((), count))

    def _parts(self, outer: tuple[int, ...], count: int) -> Iterator[Part]:
        length = self.lengths[len(outer)]
        number = self._number(length)
        if count <= number or len(outer) + 1 == len(self.lengths) or not isinstance(length, int):
            n = min(count, number if isinstance(length, int) else max(1, number // _ROWS_THAT_CHANGE))
            yield from (Part(outer, k, n) for k in range(n))
        else:
            for k in range(number):
                yield from self._parts((*outer, k), math.ceil(count / number))


def grouped(sizes: Sequence[Size], lengths: Sequence[Size]) -> list[range] | None:
    """For each of the sizes, the range of the lengths whose product it is; None = it is no such product.

    >>> grouped((6, 1, 5), (2, 3, 5))
    [range(0, 2), range(2, 2), range(2, 3)]
    """
    found, start = [], 0
    for size in sizes:
        stop = start
        while math.prod(lengths[start:stop]) != size:
            if (stop := stop + 1) > len(lengths):
                return None
        found.append(range(start, stop))
        start = stop
    return found if start == len(lengths) else None


def find_regions(traced: TracedGraph, enough: int) -> list[Region]:
    """The regions around the ops with the largest working sets, as long as these are above ``enough`` bytes.

    No two have an op in common. The first one is of the op with the largest working set that can be cut.
    """
    sets = working_sets(traced.graph) - traced.graph.base_size
    taken: set[Node] = set()
    found: list[Region] = []
    for v in sorted(range(len(sets)), key=lambda v: (-sets[v], v)):
        if sets[v] <= enough or len(found) == _MOST_REGIONS:
            break
        node = traced.nodes[v]
        if node is None or node in taken:
            continue
        region = None
        for other, is_closed in _regions_of(traced, v, node, taken):
            region = other if region is None or is_closed else region
            if is_closed:
                break
        if region is not None:
            found.append(region)
            taken.update(region.ops)
    return found


def results_of(node: Node) -> Iterator[tuple[int, Node]]:
    """The nodes that show a node's results, each with the number of its result."""
    if isinstance(node.meta.get("val"), torch.Tensor):
        yield 0, node
    else:
        for item in node.users:
            if item.target is operator.getitem and isinstance(item.meta.get("val"), torch.Tensor):
                yield item.args[1], item  # type: ignore[misc]


def _roles_of(node: Node, op: CutOp) -> Iterator[tuple[Node, object]]:
    """The nodes that show a node's results, each with its role."""
    for k, x in results_of(node):
        yield x, op.results[k]


def _regions_of(
    traced: TracedGraph, v: int, node: Node, taken: Collection[Node]
) -> Iterator[tuple[Region, bool]]:
    """The regions with an op around the largest tensor that it reads or makes, for each choice of rows.

    And whether they are closed: no op outside reads or makes one of their large tensors.
    """
    graph, pinned = traced.graph, {*traced.graph.inputs}
    op = graph.ops[v]
    touched = sorted({*op.inputs, *op.outputs} - pinned, key=lambda t: (-graph.tensors[t].size, t))
    for t in touched[:2]:
        value = traced.source_of.get(t)
        if value is None or value.op != "call_function":
            continue
        for cut in _cuts_of(value):
            growing = _Growing(traced, taken, least=int(_WIDE * graph.tensors[t].size))
            growing.grow(value, cut)
            if node in growing.ops:
                region = Region(name=op.name, traced=traced, ops=growing.ops, cuts=growing.cuts)
                yield region, growing.is_closed


def _cuts_of(value: Node) -> Iterator[Cut]:
    """The first dimensions of a tensor, at first all but the last."""
    shape = shape_of(value.meta["val"])
    for stop in range(len(shape) - 1, 0, -1):
        if math.prod(shape[:stop]) != 1:
            yield Cut(0, shape[:stop])


class _Growing:
    """A region under construction."""

    def __init__(self, traced: TracedGraph, taken: Collection[Node], least: int) -> None:
        self.traced, self.taken, self.least = traced, taken, least
        self.ops: dict[Node, CutOp] = {}
        self.cuts: dict[Node, Cut] = {}
        self.through: set[Node] = set()
        self.in_parts: set[Node] = set()  # results of ops that the region cuts, as they are or as views
        self.in_full: set[Node] = set()  # results of ops that an op of the region reads whole, or adds up

    def grow(self, value: Node, cut: Cut) -> None:
        """Take in the ops around a tensor, and around those of about its size that have the same rows."""
        self.cuts[value] = cut
        due = deque([value])
        while due:
            x = due.popleft()
            self.through.add(x)
            maker, k = (x.args[0], x.args[1]) if x.target is operator.getitem else (x, 0)
            for node, at in ((maker, k), *((user, x) for user in x.users)):
                due.extend(self._added(node, at, self.cuts[x]))  # type: ignore[arg-type]

    @property
    def is_closed(self) -> bool:
        """Whether all ops that make and read the tensors that it has grown through are in the region."""
        makers = {x.args[0] if x.target is operator.getitem else x for x in self.through}
        return all(node in self.ops for node in (*makers, *(user for x in self.through for user in x.users)))

    def _added(self, node: Node, at: Node | int, cut: Cut) -> list[Node]:
        """Take in an op if it can be cut; return the tensors to go on with."""
        if node in self.ops or node in self.taken or not self._may_be_cut(node):
            return []
        op = roles(node, at, cut)
        if op is None:
            return []
        made = dict(_roles_of(node, op))
        rows = {**op.operands, **{x: role for x, role in made.items() if isinstance(role, Cut)}}
        fresh = [x for x in rows if x not in self.cuts]
        if not self._takes(rows, whole={*node.all_input_nodes, *made} - rows.keys()):
            return []
        self.ops[node] = op
        return [x for x in fresh if self._goes_on(x, x in made)]

    def _takes(self, rows: Mapping[Node, Cut], whole: Collection[Node]) -> bool:
        """Take what an op reads and makes, by rows and whole, unless the region has it otherwise."""
        if any(self.cuts.get(x, cut) != cut for x, cut in rows.items()):
            return False
        in_parts, in_full = self.in_parts | self._made_by_ops(rows), self.in_full | self._made_by_ops(whole)
        if not in_parts.isdisjoint(in_full):
            return False
        self.in_parts, self.in_full = in_parts, in_full
        self.cuts |= rows
        return True

    def _made_by_ops(self, values: Iterable[Node]) -> set[Node]:
        """What ops make of these values, through views; of an input each op may read rows, or all."""
        found = {source for x in values for source in self.traced.sources(x)}
        return {x for x in found if x.op != "placeholder" and isinstance(x.meta.get("val"), torch.Tensor)}

    def _may_be_cut(self, node: Node) -> bool:
        if node.op != "call_function" or node.target is operator.getitem:
            return False
        return (node in self.traced.op_nodes or is_view(node)) and may_run_twice(node) and not is_random(node)

    def _goes_on(self, value: Node, is_result: bool) -> bool:
        """Whether to grow through a tensor: if it is large, or a result with one number for each row."""
        shown = value.meta["val"]
        if value.op == "placeholder":
            return False
        wide = math.prod(map(largest, shown.shape)) * shown.element_size() >= self.least
        return wide or (is_result and math.prod(shape_of(shown)) == self.cuts[value].rows)


def _shapes(node: Node) -> Iterator[object]:
    values = node.meta["val"]
    for x in values if isinstance(values, tuple | list) else (values,):
        if isinstance(x, torch.Tensor):
            yield (shape_of(x), x.dtype)

"""Write a joint graph whose regions run in pieces: the same values, as far as sums over rows are the same.

    y = f(x)           ↦   yᵢ = f(x[rows of piece i])
    w = d(y)ᵀ x        ↦   w₀ = d(y₀)ᵀ x₀,   wᵢ = wᵢ₋₁ + d(yᵢ)ᵀ xᵢ

Operands from outside are sliced, which copies nothing. A result that is read as a whole is written, piece by
piece, into one tensor. Sums of numbers in half precision are kept in single precision until the last piece.
Core decides on the order (:func:`checkmate.split`).
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, NamedTuple, Union, cast

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from checkmate import DFGraph, Group, split
from checkmate.report import PieceOf
from checkmate_torch.ops.cut_rules import SUM, Cut, Size, in_piece, is_view, shape_of
from checkmate_torch.ops.device import counts_as_cuda
from checkmate_torch.ops.in_place import Written
from checkmate_torch.ops.recompute_rules import HALVES, writes
from checkmate_torch.ops.sizes import largest
from checkmate_torch.ops.storages import shown_by
from checkmate_torch.private import Joint, fake_mode_of, formula, without_guards
from checkmate_torch.tracing.regions import Part, Region, grouped, results_of
from checkmate_torch.tracing.traced_graph import TracedGraph, ancestors

__all__ = ["Division", "cut_graph", "in_pieces", "with_sums_apart"]

_aten = torch.ops.aten
_SINGLE = {"dtype": torch.float32}
_SUMS_OF_PRODUCTS: Mapping[object, Any] = {
    _aten.mm.default: _aten.addmm.default,
    _aten.mm.dtype: _aten.addmm.dtype,
}
"""Product → the same, added to a tensor."""
_MEAN, _SUM = 1, 2
"""Reductions of a loss, as ATen numbers them."""


Number = Union[int, Node]  # noqa: UP007 - "|" needs the class itself, and documentation is built without it
"""A number, or a node that shows one."""
_Place = tuple[int, Number, Number]
"""A dimension, and where the rows of a piece start and stop in it."""


class Division(NamedTuple):
    """A region, and the part of its rows that each piece has."""

    region: Region
    parts: tuple[Part, ...]


def with_sums_apart(joint: Joint) -> Joint:
    """A copy of a joint graph in which losses that are means over rows are sums, divided by their weights.

    The weights of the targets are added up apart from the loss, before it: so the gradient of the first rows
    does not wait for the loss of the last.
    """
    graph = Graph()
    copies: dict[Node, Node] = {}
    output = graph.graph_copy(joint.module.graph, copies)
    old_output = joint.module.graph.output_node()
    made = graph.output(output)
    made.meta = dict(old_output.meta)
    for old, new in copies.items():
        new.meta = dict(old.meta)
    for target in (_aten.nll_loss_forward.default, _aten.nll_loss2d_forward.default):
        for node in graph.find_nodes(op="call_function", target=target):
            (scores,) = shown_by(cast(Node, node.args[0]))
            if node.args[3] == _MEAN and scores.dim() > 1 and scores.dtype != torch.float16:  # it overflows
                _add_up(graph, node)
    return replace(joint, module=GraphModule(joint.module, graph))


def _add_up(graph: Graph, loss: Node) -> None:
    """Let a mean be a sum, divided by the weights of its targets."""
    scores, targets, weights, _, ignored = cast("tuple[Any, ...]", loss.args)
    _, total_shown = loss.meta["val"]
    write = _Nodes(graph, loss.meta)
    with graph.inserting_before(loss):
        counted = write(_aten.ne.Scalar, (targets, ignored))
        if weights is None:
            total = write(_aten.sum.default, (counted,))
            total = write(_aten._to_copy.default, (total,), {"dtype": total_shown.dtype})
        else:
            zero = write(_aten.zeros_like.default, (targets,))
            found = write(_aten.take.default, (weights, write(_aten.where.self, (counted, targets, zero))))
            total = write(_aten.sum.default, (write(_aten.mul.Tensor, (found, counted)),))
    loss.args = (scores, targets, weights, _SUM, ignored)
    for k, item in [*results_of(loss)]:
        if k == 1:
            item.replace_all_uses_with(total)
        else:
            readers = [*item.users]
            with graph.inserting_after(item):
                mean = write(_aten.div.Tensor, (item, total))
            for reader in readers:
                reader.replace_input_with(item, mean)


class _Numbers:
    """Arithmetic on numbers, and on sizes that are known only when the new graph runs: nodes of it."""

    def __init__(self, graph: Graph, inputs: Sequence[Node]) -> None:
        """Sizes are read from the inputs of the graph."""
        self.graph, self.inputs = graph, inputs
        self.known: dict[Size, Node] = {}

    def of(self, size: Size) -> Number:
        """A size of the old graph."""
        if isinstance(size, int):
            return size
        if size not in self.known:
            self.known[size] = self._read(size)
        return self.known[size]

    def _read(self, size: Size) -> Node:
        for node in self.inputs:
            value = node.meta.get("val")
            if isinstance(value, torch.SymInt) and formula(value) == size:
                return node
            shape = shape_of(value) if isinstance(value, torch.Tensor) else ()
            if size in shape:
                return cast(Node, self._made(_aten.sym_size.int, node, shape.index(size)))
        if not (size.is_Mul or size.is_Add):
            raise RuntimeError(f"no input shows the size {size}")
        parts = (self.of(int(x) if x.is_Integer else x) for x in size.args)
        return cast(Node, reduce(self.times if size.is_Mul else self.plus, parts))

    def plus(self, a: Number, b: Number) -> Number:
        """Their sum."""
        return b if a == 0 else a if b == 0 else self._made(operator.add, a, b)

    def minus(self, a: Number, b: Number) -> Number:
        """Their difference."""
        return a if b == 0 else self._made(operator.sub, a, b)

    def times(self, a: Number, b: Number) -> Number:
        """Their product."""
        return 0 if 0 in (a, b) else b if a == 1 else a if b == 1 else self._made(operator.mul, a, b)

    def part(self, length: Number, k: int, n: int) -> Number:
        """Where part k of n nearly equal parts begins."""
        return 0 if k == 0 else length if k == n else self._made(operator.floordiv, self.times(length, k), n)

    def _made(self, function: Any, *args: Number) -> Any:
        if not any(isinstance(x, Node) for x in args):
            return function(*args)
        node = self.graph.call_function(function, args)
        node.meta["val"] = function(*(x.meta["val"] if isinstance(x, Node) else x for x in args))
        return node


class _Nodes:
    """Adds calls to a graph, with their fake values and the origin of another node."""

    def __init__(self, graph: Graph, meta: Mapping[str, Any], piece: PieceOf | None = None) -> None:
        self.graph = graph
        self.meta = {k: v for k, v in meta.items() if k not in ("val", "tensor_meta", "desc")}
        if piece is not None:
            self.meta["piece"] = piece

    def __call__(self, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> Node:
        node = self.graph.call_function(target, args, dict(kwargs or {}))
        node.meta = self.meta | {"val": _shown(node)}
        return node


def _shown(node: Node) -> object:
    """The fake value of a call of fake values."""
    args, kwargs = map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    mode = fake_mode_of(shown_by(*node.all_input_nodes))
    if mode is None:
        raise RuntimeError(f"{node.target} has no fake operand")
    with mode:
        return cast(Any, node.target)(*args, **kwargs)


def in_pieces(traced: TracedGraph, divisions: Sequence[Division]) -> Joint:
    """The joint graph of a traced step with some regions in pieces; the old one is unchanged.

    ``divisions`` are of its regions, which have no op in common.
    """
    writer = _Writer(traced, divisions)
    with without_guards(node.meta.get("val") for node in traced.joint.graph.nodes):  # pieces may be empty
        for node in traced.joint.graph.find_nodes(op="placeholder"):
            writer.inputs.append(writer.copy(node))
        for op, region, piece in cut_graph(traced.graph, divisions)[1]:
            made = traced.nodes[op]
            if made is None:
                continue
            if region is None:
                writer.copy(made)
            else:
                writer.add_piece(made, region, piece)
        return replace(traced.as_joint, module=writer.module())


def cut_graph(
    graph: DFGraph, divisions: Sequence[Division]
) -> tuple[DFGraph, list[tuple[int, int | None, int]]]:
    """The graph of a step in pieces of equal length, as core makes it; and what each of its ops runs.

    That is an op of the old graph, the number of its region, and the number of its piece.
    """
    order: list[tuple[int, int | None, int]] = [(v, None, 0) for v in range(graph.n_ops)]
    for k, (region, parts) in enumerate(divisions):
        place = {op: new for new, (op, inside, _) in enumerate(order) if inside is None}
        barrier = region.traced.boundary
        group = Group(
            rows=len(parts),  # the order does not depend on their number
            rules={place[v]: rules for v, rules in region.rules.items()},
            barrier=None if barrier is None else place[barrier],
        )
        cut = split(graph, group, len(parts))
        order = [
            order[piece.op] if piece.index is None else (order[piece.op][0], k, piece.index)
            for piece in cut.pieces
        ]
        graph = cut.graph
    return graph, order


class _Writer:
    """The new graph under construction.

    Attributes:
        whole: old node → the new one with its whole value, as far as it is complete.
        pieces: old node and number of a piece → the new node.
    """

    def __init__(self, traced: TracedGraph, divisions: Sequence[Division]) -> None:
        self.traced, self.divisions = traced, divisions
        self.inputs: list[Node] = []
        self.graph = Graph()
        self.numbers = _Numbers(self.graph, self.inputs)
        self.whole: dict[Node, Node] = {}
        self.pieces: dict[tuple[Node, int], Node] = {}
        self.growing: dict[Node, Node] = {}  # old node → its sum, or the pieces written, so far
        self.region_of = {node: k for k, (region, _) in enumerate(divisions) for node in region.ops}
        self.read_whole = self._read_whole()

    def _read_whole(self) -> set[Node]:
        """The results of regions that are read outside of them, directly or through views."""
        old = self.traced.joint.graph
        live = ancestors([old.output_node(), *(n for n in old.nodes if writes(n))])
        found: set[Node] = set()
        for node in reversed(old.nodes):
            if node not in self.region_of:
                continue
            for _, value in results_of(node):
                readers = [user for user in value.users if user in live]
                inside = [u for u in readers if self.region_of.get(u) == self.region_of[node]]
                if len(inside) < len(readers) or any(is_view(u) and u in found for u in inside):
                    found.add(value)
        return found

    def copy(self, node: Node) -> Node:
        """Write a node that is not cut, or a view that is read as a whole, and show its results."""
        if node not in self.whole:
            args, kwargs = map_arg((node.args, node.kwargs), self.value)
            made = self.graph.create_node(node.op, node.target, args, kwargs, name=node.name)
            made.meta = dict(node.meta)
            self.whole[node] = made
        return self.whole[node]

    def value(self, node: Node) -> Node:
        """The whole value of an old node."""
        if node in self.whole or node in self.growing:
            return self.whole[node]
        return self.copy(node)

    def add_piece(self, node: Node, region: int, index: int) -> None:
        """Write a piece of an op, and add its results to those of the pieces before."""
        division = self.divisions[region]
        is_last = index == len(division.parts) - 1
        write = self._write_piece(node, region, index)
        for k, value in results_of(node):
            role = division.region.ops[node].results[k]
            if not value.users or not (role == SUM or value in self.read_whole):
                continue
            if role == SUM:
                self._add(write, value, self.pieces.pop((value, index)))
            else:
                self._put(write, value, self._places(cast(Cut, role), region, index))
            if is_last:
                self._complete(write, value)

    def _write_piece(self, node: Node, region: int, index: int) -> _Nodes:
        """Write an op or a view on the rows of a piece; return what adds nodes of this piece."""
        division = self.divisions[region]
        op = division.region.ops[node]

        def operand(x: Node) -> Node:
            return self._piece(x, op.operands[x], region, index) if x in op.operands else self.value(x)

        args, kwargs = map_arg((node.args, node.kwargs), operand)
        cut = next((cut for cut in (*op.results, *op.operands.values()) if isinstance(cut, Cut)), None)
        if cut is not None:
            places = self._places(cut, region, index)
            args = in_piece(node, args, {d: self.numbers.minus(stop, start) for d, start, stop in places})
        piece = PieceOf(name=node.name, index=index, count=len(division.parts))
        write = _Nodes(self.graph, node.meta, piece)
        made = write(node.target, args, kwargs)
        for k, value in results_of(node):
            self.pieces[value, index] = made if value is node else write(operator.getitem, (made, k))
        return write

    def _piece(self, x: Node, cut: Cut, region: int, index: int) -> Node:
        """The rows of a piece of an operand."""
        maker = x.args[0] if x.target is operator.getitem else x
        if self.region_of.get(cast(Node, maker)) == region and x not in self.whole:
            if (x, index) not in self.pieces:  # a view
                self._write_piece(x, region, index)
            return self.pieces[x, index]
        piece, shape = self.value(x), shape_of(x.meta["val"])
        write = _Nodes(self.graph, x.meta)
        for place, size in zip(self._places(cut, region, index), cut.sizes, strict=True):
            d, start, stop = place
            if d >= 0 and shape[d] == size and not (start == 0 and stop == self.numbers.of(size)):
                piece = write(_aten.slice.Tensor, (piece, *place))
        return piece

    def _places(self, cut: Cut, region: int, index: int) -> list[_Place]:
        """Where the rows of a piece are, in each dimension of a tensor that is cut."""
        (found, parts), numbers = self.divisions[region], self.numbers
        outer, k, n = parts[index]
        groups = cast("list[range]", grouped(cut.sizes, found.lengths))
        places: list[_Place] = []
        for d, group, size in zip(range(cut.start, cut.stop), groups, cut.sizes, strict=True):
            if group.start > len(outer) or not group:
                places.append((d, 0, numbers.of(size)))
                continue
            first = 0
            for level in group[: max(0, len(outer) - group.start)]:
                first = first * cast(int, found.lengths[level]) + outer[level]
            start: Number = first
            stop: Number = first + 1
            if len(outer) in group:
                length = numbers.of(found.lengths[len(outer)])
                before = numbers.times(length, first)
                start = numbers.plus(before, numbers.part(length, k, n))
                stop = numbers.plus(before, numbers.part(length, k + 1, n))
                for level in group[len(outer) - group.start + 1 :]:
                    inner = numbers.of(found.lengths[level])
                    start, stop = numbers.times(start, inner), numbers.times(stop, inner)
            places.append((d, start, stop))
        return places

    def _add(self, write: _Nodes, value: Node, part: Node) -> None:
        """Add a piece's part to a sum."""
        if value.meta["val"].dtype in HALVES:
            part = self._unrounded(write, part)
        product = _SUMS_OF_PRODUCTS.get(part.target)
        total = self.growing.pop(value, None)
        if total is None:
            is_rounded = part.meta["val"].dtype in HALVES
            total = write(_aten._to_copy.default, (part,), _SINGLE) if is_rounded else part
        elif product is not None:
            total = write(product, (total, *part.args), part.kwargs)
            total.meta["accumulates"] = True
            self.graph.erase_node(part)
        else:
            total = write(_aten.add.Tensor, (total, part))
            total.meta["accumulates"] = True
        self.growing[value] = total

    def _unrounded(self, write: _Nodes, part: Node) -> Node:
        """A part of a sum in single precision, where there is a kernel for that."""
        if part.target in (_aten.sum.default, _aten.sum.dim_IntList):
            made = write(part.target, part.args, {**part.kwargs, **_SINGLE})
        elif part.target is not _aten.mm.default:
            return part
        elif counts_as_cuda(part.meta["val"].device):
            made = write(_aten.mm.dtype, part.args, {"out_dtype": torch.float32})
        else:
            factors = [write(_aten._to_copy.default, (x,), _SINGLE) for x in part.args]
            made = write(part.target, tuple(factors))
        self.graph.erase_node(part)
        return made

    def _put(self, write: _Nodes, value: Node, places: Sequence[_Place]) -> None:
        """Write a piece's rows into the whole result."""
        shown, index = value.meta["val"], cast(PieceOf, write.meta["piece"]).index
        strides = [largest(n) for n in shown.stride()]
        order = sorted(range(shown.dim()), key=lambda d: (-strides[d], d))
        dims, starts, stops = zip(*places, strict=True)
        shape = [self.numbers.of(n) for n in shape_of(shown)]
        args = (self.pieces[value, index], self.growing.pop(value, None), shape, list(starts), list(stops))
        self.growing[value] = write(Written(dims, tuple(order)), args)
        self.growing[value].meta["accumulates"] = True

    def _complete(self, write: _Nodes, value: Node) -> None:
        """The last piece is added: show the result as the old graph does, so that views of it are right."""
        made, dtype = self.growing.pop(value), value.meta["val"].dtype
        if made.meta["val"].dtype != dtype:
            made = write(_aten._to_copy.default, (made,), {"dtype": dtype})
        made.meta["val"] = value.meta["val"]
        self.whole[value] = made

    def module(self) -> GraphModule:
        """The finished graph."""
        old = self.traced.joint
        output = old.graph.output_node()
        made = self.graph.output(map_arg(output.args[0], self.value))
        made.meta = dict(output.meta)
        return GraphModule(old, self.graph)

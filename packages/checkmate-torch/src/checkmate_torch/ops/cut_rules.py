"""Which ops may run in pieces along some of their dimensions, and what each piece reads and makes.

The *rows* of an op are a few neighbouring dimensions of its tensors, taken as one:

    y[r] = f(x[r], w)        a result with the rows is made piece by piece           (rule ``row``)
    y = Σ_r g(x[r], z[r])    a result without them is a sum, over the pieces          (rule ``sum``)

The table at the end has a rule for each op that is known; no other op is ever cut. A rule is asked with the
rows of one tensor of an op, an operand or a result, and answers with those of all others; None = this op
can't be cut there.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

import torch
from torch.fx import Node

from checkmate_torch.ops.storages import tensors_in
from checkmate_torch.private import OpOverload, depends_on_data, formula

__all__ = ["SUM", "Cut", "CutOp", "Rule", "Size", "in_piece", "is_view", "roles", "shape_of"]

_aten = torch.ops.aten
SUM: Literal["sum"] = "sum"
"""The role of a result that is a sum over the rows."""

Size = Any
"""A length: a number, or a formula of the symbols of sizes that may change."""


class Cut(NamedTuple):
    """Rows of a tensor: its dimensions from ``start`` on have the lengths ``sizes``, outermost first.

    A tensor that is broadcast along one of them has the length 1 there, or no such dimension (``start`` may
    be negative): then each piece reads all of it.
    """

    start: int
    sizes: tuple[Size, ...]

    @property
    def stop(self) -> int:
        """The first dimension after the rows."""
        return self.start + len(self.sizes)

    @property
    def rows(self) -> Size:
        """Their number."""
        return math.prod(self.sizes)

    def moved(self, by: int) -> Cut:
        """The same rows, at other dimensions."""
        return Cut(self.start + by, self.sizes)


class CutOp(NamedTuple):
    """How an op is cut.

    Attributes:
        operands: node → its rows, for each operand that a piece reads in part.
        results: for each result its rows, or ``"sum"``; None = there is no such result.
    """

    operands: Mapping[Node, Cut]
    results: tuple[Cut | Literal["sum"] | None, ...]


Rule = Callable[[Node, "Node | int", Cut], "CutOp | None"]
"""From a node, one of its operands or the number of a result, and the rows of that one."""


def roles(node: Node, at: Node | int, cut: Cut) -> CutOp | None:
    """How an op is cut so that an operand, or a result of this number, has these rows; None = it can't be."""
    if node.target is operator.getitem:
        return None
    rule = _RULES.get(node.target)
    if rule is None and isinstance(node.target, OpOverload) and torch.Tag.pointwise in node.target.tags:
        rule = _elementwise
    if rule is None or not all(map(_has_known_sizes, (node, *node.all_input_nodes))):
        return None
    found = rule(node, at, cut)
    if found is None or (isinstance(at, Node) and at in found.operands and found.operands[at] != cut):
        return None
    return found


def is_view(node: Node) -> bool:
    """Whether a node that can be cut only shows its operand in another form."""
    return node.target in _VIEWS


def in_piece(node: Node, args: tuple[Any, ...], lengths: Mapping[int, object]) -> tuple[Any, ...]:
    """The arguments of an op's piece, with sizes written as numbers changed.

    Args:
        node: the op.
        args: its arguments, with the operands of the piece.
        lengths: dimension of the result → its length in the piece, a number or a node.
    """
    if node.target in _SHAPED:
        k = _SHAPED[node.target]
        known = [n if isinstance(n, int) else given for n, given in zip(_shape(node), args[k], strict=True)]
        shape = [lengths.get(d, n) for d, n in enumerate(known)]
        return (*args[:k], shape, *args[k + 1 :])
    if node.target in _COUNTED:
        k = _COUNTED[node.target]
        return (*args[:k], lengths[0], *args[k + 1 :])
    return args


def _has_known_sizes(node: Node) -> bool:
    """Whether the inputs of a graph show the sizes of a node, or numbers whose sums and products they are."""
    return all(_is_known(n) for x in tensors_in(node.meta.get("val")) for n in shape_of(x))


def _is_known(size: Size) -> bool:
    if isinstance(size, int) or size.is_Integer:
        return True
    if size.is_Symbol:
        return not depends_on_data(size)
    return (size.is_Add or size.is_Mul) and all(map(_is_known, size.args))


def shape_of(value: torch.Tensor) -> tuple[Size, ...]:
    """The shape of a fake tensor, with formulas for sizes that may change; to compare them adds no guard."""
    return tuple(map(formula, value.shape))


def _shape(node: Node, result: int = 0) -> tuple[Size, ...]:
    value = node.meta["val"]
    return shape_of(value[result] if isinstance(value, tuple | list) else value)


def _has(shape: Sequence[Size], cut: Cut) -> bool:
    """Whether a tensor has all these rows."""
    return cut.start >= 0 and tuple(shape[cut.start : cut.stop]) == cut.sizes


def _aligned(shape: Sequence[Size], cut: Cut) -> Cut | Literal["whole"] | None:
    """The rows of an operand that may be broadcast; None = it does not fit."""
    lengths = [shape[d] if 0 <= d < len(shape) else 1 for d in range(cut.start, cut.stop)]
    if all(n == 1 for n in lengths):
        return "whole"
    return cut if all(n in (1, size) for n, size in zip(lengths, cut.sizes, strict=True)) else None


def _tensors(node: Node) -> list[Node]:
    return [x for x in node.all_input_nodes if isinstance(x.meta.get("val"), torch.Tensor)]


def _rows_of_result(node: Node, at: Node | int, cut: Cut, result: int = 0) -> Cut | None:
    """The rows of a result that is aligned with its operands at the last dimension."""
    cut = cut.moved(len(_shape(node, result)) - len(_shape(at))) if isinstance(at, Node) else cut
    return cut if _has(_shape(node, result), cut) else None


def _elementwise(node: Node, at: Node | int, cut: Cut) -> CutOp | None:
    """y[…] = f(x[…], z[…]), with broadcasting."""
    return _along(node, at, cut, ())


def _along(node: Node, at: Node | int, cut: Cut, fixed: Sequence[int]) -> CutOp | None:
    """The same, where the op mixes the numbers along ``fixed`` dimensions."""
    out = _rows_of_result(node, at, cut)
    if out is None or any(d % len(_shape(node)) in range(out.start, out.stop) for d in fixed):
        return None
    operands: dict[Node, Cut] = {}
    for x in _tensors(node):
        own = _aligned(_shape(x), out.moved(len(_shape(x)) - len(_shape(node))))
        if own is None:
            return None
        if isinstance(own, Cut):
            operands[x] = own
    made = node.meta["val"]
    return CutOp(operands, (out,) * (len(made) if isinstance(made, tuple | list) else 1))


def _except(position: int) -> Rule:
    """Element-wise except along the dimension, or dimensions, that are an argument."""

    def rule(node: Node, at: Node | int, cut: Cut) -> CutOp | None:
        dims = node.args[position] if position < len(node.args) else 0
        return _along(node, at, cut, cast("list[int]", dims if isinstance(dims, list | tuple) else [dims]))

    return rule


def _picked(node: Node, at: Node | int, cut: Cut) -> CutOp | None:
    """Element-wise except along a dimension in which indices pick places; nothing is broadcast."""
    found = _except(1)(node, at, cut)
    if found is None or not all(_has(_shape(x), cast(Cut, found.results[0])) for x in _tensors(node)):
        return None
    return found


def _padded(node: Node, at: Node | int, cut: Cut) -> CutOp | None:
    """Element-wise except along the last dimensions, which are padded."""
    return _along(node, at, cut, [-1 - k for k in range(len(cast("list[int]", node.args[1])) // 2)])


def _product(*patterns: str) -> Rule:
    """A sum of products by the dimensions of operands and result, as ``torch.einsum`` writes them.

    The factors are the last operands. A summand before them, as of ``addmm``, is broadcast to the result.
    """
    *inputs, made = patterns

    def rule(node: Node, at: Node | int, cut: Cut) -> CutOp | None:
        tensors = [x for x in node.args if isinstance(x, Node)]
        factors, summands = tensors[-len(inputs) :], tensors[: -len(inputs)]
        if len(cut.sizes) > 1:
            return None
        if isinstance(at, Node) and at in summands:
            cut, at = cut.moved(len(made) - len(_shape(at))), 0
        shown = made if not isinstance(at, Node) else inputs[factors.index(at)]
        if not 0 <= cut.start < len(shown):
            return None
        letter = shown[cut.start]
        if len(set(factors)) < len(factors) or (letter not in made and summands):
            return None
        operands = {
            x: Cut(own.index(letter), cut.sizes)
            for x, own in zip(factors, inputs, strict=True)
            if letter in own
        }
        if letter not in made:
            return CutOp(operands, (SUM,))
        out = Cut(made.index(letter), cut.sizes)
        for x in summands:
            own = _aligned(_shape(x), out.moved(len(_shape(x)) - len(made)))
            if own is None or x in factors:
                return None
            if isinstance(own, Cut):
                operands[x] = own
        return CutOp(operands, (out,))

    return rule


def _reduction(*, adds: bool = False) -> Rule:
    """A reduction over the dimensions that are the second argument; ``adds``: it is a sum."""

    def rule(node: Node, at: Node | int, cut: Cut) -> CutOp | None:
        (x,) = _tensors(node)
        rank, dims = len(_shape(x)), node.args[1] if len(node.args) > 1 else None
        dims = range(rank) if dims is None or dims == [] else dims if isinstance(dims, list) else [dims]
        gone = {d % max(rank, 1) for d in cast("Sequence[int]", dims)}
        kept = len(_shape(node)) == rank
        if not isinstance(at, Node) and not kept:
            left = [d for d in range(rank) if d not in gone]
            before = left[cut.start : cut.stop]
            if before != list(range(before[0], before[0] + len(cut.sizes))):
                return None
            cut = Cut(before[0], cut.sizes)
        own = set(range(cut.start, cut.stop))
        if not _has(_shape(x), cut) or (own & gone and not (adds and own <= gone)):
            return None
        if own <= gone:
            return CutOp({x: cut}, (SUM,))
        return CutOp({x: cut}, (cut if kept else cut.moved(-sum(d < cut.start for d in gone)),))

    return rule


def _at_first(operands: Sequence[int], results: str, most: int = 1) -> Rule:
    """An op whose operands, by position, and results begin with the rows, at most ``most`` dimensions.

    ``results`` has a letter for each: r = it has the rows, s = it is a sum.
    """

    def rule(node: Node, at: Node | int, cut: Cut) -> CutOp | None:
        if cut.start != 0 or len(cut.sizes) > most:
            return None
        cut_ones = [x for x in (node.args[k] for k in operands if k < len(node.args)) if isinstance(x, Node)]
        if (isinstance(at, Node) and at not in cut_ones) or not all(_has(_shape(x), cut) for x in cut_ones):
            return None
        values = node.meta["val"]
        made: list[Cut | Literal["sum"] | None] = []
        for k, kind in enumerate(results):
            value = values[k] if isinstance(values, tuple | list) else values
            made.append(None if value is None else cut if kind == "r" else SUM)
        if not isinstance(at, Node) and made[at] != cut:
            return None
        return CutOp(dict.fromkeys(cut_ones, cut), tuple(made))

    return rule


def _norm(operands: Sequence[int], results: str, shape: int) -> Rule:
    """A norm over the last dimensions, whose sizes are the argument at ``shape``."""

    def rule(node: Node, at: Node | int, cut: Cut) -> CutOp | None:
        rank = len(_shape(cast(Node, node.args[operands[0]])))
        normed = len(cast("Sequence[int]", node.args[shape]))
        return _at_first(operands, results, most=rank - normed)(node, at, cut)

    return rule


def _nll(node: Node, at: Node | int, cut: Cut) -> CutOp | None:
    """The negative log-likelihood of rows: kept apart (reduction 0), or added up (2); a mean can't be cut."""
    kind = node.args[3]
    if kind == 1 or len(_shape(cast(Node, node.args[0]))) < 2:
        return None
    return _at_first((0, 1), "ss" if kind == 2 else "rs")(node, at, cut)


def _nll_backward(node: Node, at: Node | int, cut: Cut) -> CutOp | None:
    rows = (0, 1, 2) if node.args[4] == 0 else (1, 2)
    return None if len(_shape(cast(Node, node.args[1]))) < 2 else _at_first(rows, "r")(node, at, cut)


def _attention(operands: Sequence[int], results: str) -> Rule:
    """Fused attention: examples are independent. A mask for each example can't be cut."""

    def rule(node: Node, at: Node | int, cut: Cut) -> CutOp | None:
        mask = node.kwargs.get("attn_mask")
        if isinstance(mask, Node) and len(_shape(mask)) > 2 and _shape(mask)[0] != 1:
            return None
        return _at_first(operands, results)(node, at, cut)

    return rule


def _embedding(node: Node, at: Node | int, cut: Cut) -> CutOp | None:
    indices = cast(Node, node.args[1])
    return _at_first((1,), "r", most=len(_shape(indices)))(node, at, cut) if at is not node.args[0] else None


def _embedding_backward(node: Node, at: Node | int, cut: Cut) -> CutOp | None:
    by_frequency = len(node.args) > 4 and node.args[4]
    most = len(_shape(cast(Node, node.args[1])))
    return None if by_frequency else _at_first((0, 1), "s", most=most)(node, at, cut)


def _created(node: Node, at: Node | int, cut: Cut) -> CutOp | None:
    """A tensor of one number, of a given shape."""
    return CutOp({}, (cut,)) if not isinstance(at, Node) and _has(_shape(node), cut) else None


def _created_like(node: Node, at: Node | int, cut: Cut) -> CutOp | None:
    """A tensor of one number, of a given shape; its operand only says of which type."""
    (x,) = _tensors(node)
    return CutOp({x: cut} if _has(_shape(x), cut) else {}, (cut,)) if _has(_shape(node), cut) else None


def _reshaped(node: Node, at: Node | int, cut: Cut) -> CutOp | None:
    """The rows, in whatever dimensions they are, that come after the same number of others."""
    (x,) = _tensors(node)
    mine, other = (_shape(x), _shape(node)) if isinstance(at, Node) else (_shape(node), _shape(x))
    if not _has(mine, cut):
        return None
    found = _rows_after(other, math.prod(mine[: cut.start]), cut.rows)
    if found is None:
        return None
    return CutOp({x: cut}, (found,)) if isinstance(at, Node) else CutOp({x: found}, (cut,))


def _rows_after(shape: Sequence[Size], before: Size, rows: Size) -> Cut | None:
    """The dimensions that have this number of rows after others of this product."""
    for start in range(len(shape)):
        if math.prod(shape[:start]) == before and shape[start] != 1:
            for stop in range(start + 1, len(shape) + 1):
                if math.prod(shape[start:stop]) == rows:
                    return Cut(start, tuple(shape[start:stop]))
    return None


def _permuted(order: Callable[[Node, int], Sequence[int]]) -> Rule:
    """A permutation of dimensions: result dimension d shows dimension ``order[d]`` of the operand."""

    def rule(node: Node, at: Node | int, cut: Cut) -> CutOp | None:
        (x,) = _tensors(node)
        shown = list(order(node, len(_shape(x))))
        own = range(cut.start, cut.stop)
        moved = [shown.index(d) for d in own] if isinstance(at, Node) else [shown[d] for d in own]
        if moved != list(range(moved[0], moved[0] + len(moved))):
            return None
        other = Cut(moved[0], cut.sizes)
        return CutOp({x: cut}, (other,)) if isinstance(at, Node) else CutOp({x: other}, (cut,))

    return rule


def _transposition(node: Node, rank: int) -> list[int]:
    first, second = (cast(int, d) % rank for d in (node.args[1:3] if len(node.args) > 1 else (0, -1)))
    order = list(range(rank))
    order[first], order[second] = second, first
    return order


def _permutation(node: Node, rank: int) -> list[int]:
    return [d % rank for d in cast("list[int]", node.args[1])]


def _with_dimension(*, gone: bool, position: int = 1) -> Rule:
    """One dimension, the argument at ``position``, appears or is gone: an index, or of length 1."""

    def rule(node: Node, at: Node | int, cut: Cut) -> CutOp | None:
        (x,) = _tensors(node)
        longer, shorter = (x, node) if gone else (node, x)
        if len(_shape(longer)) != len(_shape(shorter)) + 1:
            return None
        d = cast(int, node.args[position]) % len(_shape(longer))
        is_longer = (at is x) == gone
        long = cut if is_longer else cut.moved(int(d <= cut.start))
        if d in range(long.start, long.stop) or not _has(_shape(longer), long):
            return None
        short = long.moved(-int(d < long.start))
        mine, made = (long, short) if gone else (short, long)
        return CutOp({x: mine}, (made,))

    return rule


_VIEWS: Mapping[object, Rule] = {
    **dict.fromkeys((_aten.alias.default, _aten.detach.default, _aten.expand.default), _elementwise),
    **dict.fromkeys((_aten.view.default, _aten._unsafe_view.default), _reshaped),
    **dict.fromkeys((_aten.t.default, _aten.transpose.int), _permuted(_transposition)),
    _aten.permute.default: _permuted(_permutation),
    _aten.unsqueeze.default: _with_dimension(gone=False),
    **dict.fromkeys((_aten.squeeze.dim, _aten.select.int), _with_dimension(gone=True)),
    _aten.slice.Tensor: _except(1),
}
_RULES: Mapping[object, Rule] = {
    **_VIEWS,
    **dict.fromkeys((_aten._to_copy.default, _aten.clone.default), _elementwise),
    **dict.fromkeys((_aten.where.self, _aten.masked_fill.Scalar), _elementwise),
    **dict.fromkeys((_aten.zeros_like.default, _aten.full_like.default), _elementwise),
    **dict.fromkeys((_aten._softmax.default, _aten._log_softmax.default), _except(1)),
    **dict.fromkeys(
        (_aten._softmax_backward_data.default, _aten._log_softmax_backward_data.default), _except(2)
    ),
    **dict.fromkeys((_aten.gather.default, _aten.scatter_add.default), _picked),
    **dict.fromkeys((_aten.scatter.src, _aten.scatter.value), _picked),
    _aten.slice_backward.default: _except(2),
    _aten.select_backward.default: _with_dimension(gone=False, position=2),
    **dict.fromkeys((_aten.cat.default, _aten.cumsum.default), _except(1)),
    _aten.constant_pad_nd.default: _padded,
    **dict.fromkeys((_aten.mm.default, _aten.addmm.default), _product("ik", "kj", "ij")),
    **dict.fromkeys((_aten.bmm.default, _aten.baddbmm.default), _product("bik", "bkj", "bij")),
    **dict.fromkeys((_aten.sum.dim_IntList, _aten.sum.default), _reduction(adds=True)),
    **dict.fromkeys((_aten.mean.dim, _aten.amax.default, _aten.logsumexp.default), _reduction()),
    _aten.native_layer_norm.default: _norm((0,), "rrr", 1),
    _aten.native_layer_norm_backward.default: _norm((0, 1, 3, 4), "rss", 2),
    _aten.native_group_norm.default: _at_first((0,), "rrr"),
    _aten.native_group_norm_backward.default: _at_first((0, 1, 2, 3), "rss"),
    **dict.fromkeys((_aten.nll_loss_forward.default, _aten.nll_loss2d_forward.default), _nll),
    **dict.fromkeys((_aten.nll_loss_backward.default, _aten.nll_loss2d_backward.default), _nll_backward),
    _aten._scaled_dot_product_flash_attention_for_cpu.default: _attention((0, 1, 2), "rr"),
    _aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention(range(6), "rrr"),
    _aten.embedding.default: _embedding,
    _aten.embedding_dense_backward.default: _embedding_backward,
    _aten.convolution.default: _at_first((0,), "r"),
    _aten.convolution_backward.default: _at_first((0, 1), "rss"),
    _aten.max_pool2d_with_indices.default: _at_first((0,), "rr"),
    _aten.max_pool2d_with_indices_backward.default: _at_first((0, 1, 7), "r"),
    _aten.avg_pool2d.default: _at_first((0,), "r"),
    _aten.avg_pool2d_backward.default: _at_first((0, 1), "r"),
    _aten.full.default: _created,
    _aten.new_zeros.default: _created_like,
}
"""Op → its rule. Element-wise ops (``torch.Tag.pointwise``) need no entry."""

_SHAPED: Mapping[object, int] = {
    _aten.view.default: 1,
    _aten._unsafe_view.default: 1,
    _aten.expand.default: 1,
    _aten.full.default: 0,
    _aten.new_zeros.default: 1,
    _aten.slice_backward.default: 1,
    _aten.select_backward.default: 1,
}
"""Op → the position of an argument that is the shape of its result."""
_COUNTED: Mapping[object, int] = {
    _aten.native_group_norm.default: 3,
    _aten.native_group_norm_backward.default: 5,
}
"""Op → the position of an argument that is the number of rows."""

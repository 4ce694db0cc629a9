"""A law for each rule: an op that runs in pieces, as its rule says, gives what it gives as a whole.

    rows: y[r] = f(x[r])        the results of the pieces, put together
    sum:  y = Σ f(x[r])         the results of the pieces, added up

The table says for each op where it may be cut, and whether the kernel of a CPU gives the same bits then.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from checkmate_torch.ops import cut_rules
from checkmate_torch.ops.cut_rules import SUM, Cut, CutOp, in_piece, is_view, roles
from checkmate_torch.private import tree_map

aten = torch.ops.aten


class Call(NamedTuple):
    """An op and its arguments."""

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self) -> Any:
        return self.target(*self.args, **self.kwargs)


def call(target: Any, *args: Any, **kwargs: Any) -> Call:
    return Call(target, args, kwargs)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers that are the same for each shape in each run."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(math.prod(shape))).to(dtype)


def numbers(below: int, *shape: int) -> Tensor:
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(below))


X = normal(24, 20)
CUBE = normal(4, 6, 10)
IMAGES = normal(6, 4, 8, 8)
TARGETS = numbers(20, 24)


ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu.default


def heads() -> list[Tensor]:
    return [normal(4, 3, 16, 8) * k for k in (1, 2, 3)]


def attention_backward() -> Call:
    op = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    out, logsumexp = ATTENTION(*heads(), 0.0, True)
    return call(op, normal(4, 3, 16, 8) + 1, *heads(), out, logsumexp, 0.0, True)


def softmax_backward(op: Any, forward: Any, dim: int) -> Call:
    return call(op, normal(4, 6, 10), forward(CUBE, dim, False), dim, torch.float32)


def layer_norm_backward(*mask: bool) -> Call:
    _, mean, scale = aten.native_layer_norm(CUBE, [10], normal(10), normal(10), 1e-5)
    g, mask = normal(4, 6, 10) + 1, list(mask)
    return call(
        aten.native_layer_norm_backward.default, g, CUBE, [10], mean, scale, normal(10), normal(10), mask
    )


def group_norm_backward(*mask: bool) -> Call:
    _, mean, scale = aten.native_group_norm(IMAGES, normal(4), normal(4), 6, 4, 64, 2, 1e-5)
    g, mask = normal(6, 4, 8, 8) + 1, list(mask)
    return call(aten.native_group_norm_backward.default, g, IMAGES, mean, scale, normal(4), 6, 4, 64, 2, mask)


def nll_backward(reduction: int, weight: Tensor | None = None) -> Call:
    scores = X.log_softmax(1)
    _, total = aten.nll_loss_forward(scores, TARGETS, weight, reduction, 3)
    g = normal(24) if reduction == 0 else torch.tensor(0.5)
    return call(aten.nll_loss_backward.default, g, scores, TARGETS, weight, reduction, 3, total)


def nll2d_backward(reduction: int) -> Call:
    scores, targets, weight = IMAGES.log_softmax(1), numbers(4, 6, 8, 8), normal(4).abs()
    _, total = aten.nll_loss2d_forward(scores, targets, weight, reduction, 3)
    g = normal(6, 8, 8) if reduction == 0 else torch.tensor(0.5)
    return call(aten.nll_loss2d_backward.default, g, scores, targets, weight, reduction, 3, total)


def pool_backward() -> Call:
    made, indices = aten.max_pool2d_with_indices(IMAGES, [2, 2], [2, 2])
    rest = ([2, 2], [2, 2], [0, 0], [1, 1], False)
    return call(aten.max_pool2d_with_indices_backward.default, normal(*made.shape), IMAGES, *rest, indices)


def convolution_backward(*mask: bool) -> Call:
    rest = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    return call(
        aten.convolution_backward.default,
        normal(6, 5, 8, 8),
        IMAGES,
        normal(5, 4, 3, 3),
        [5],
        *rest,
        list(mask),
    )


CONVOLUTION = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
MASK = numbers(2, 24, 20).bool()
SQUARE = normal(20, 20)
WEIGHTS = normal(20).abs() + 1

CASES: Mapping[str, tuple[Callable[[], Call], str]] = {
    "copy": (
        lambda: call(aten.clone.default, X.T, memory_format=torch.contiguous_format),
        "0 => 0 | 01 => 01 | 1 => 1",
    ),
    "cast": (lambda: call(aten._to_copy.default, X, dtype=torch.bfloat16), "0 => 0 | 01 => 01 | 1 => 1"),
    "choice": (lambda: call(aten.where.self, MASK, X, normal(20)), "0 0 . => 0 | 01 01 0 => 01 | 1 1 0 => 1"),
    "fill": (lambda: call(aten.masked_fill.Scalar, X, MASK, 2.0), "0 0 => 0 | 01 01 => 01 | 1 1 => 1"),
    "tanh": (lambda: call(aten.tanh.default, X), "0 => 0 | 01 => 01 | 1 => 1"),
    "exp, turned": (lambda: call(aten.exp.default, X.T), "0 => 0 | 01 => 01 | 1 => 1"),
    "gelu": (
        lambda: call(aten.gelu.default, CUBE),
        "0 => 0 | 01 => 01 | 012 ~> 012 | 1 ~> 1 | 12 ~> 12 | 2 ~> 2",
    ),
    "gelu's gradient": (
        lambda: call(aten.gelu_backward.default, CUBE, normal(4, 6, 10) + 1),
        "0 0 => 0 | 01 01 => 01 | 012 012 ~> 012 | 1 1 ~> 1 | 12 12 ~> 12 | 2 2 ~> 2",
    ),
    "silu, half": (
        lambda: call(aten.silu.default, normal(24, 20, dtype=torch.bfloat16)),
        "0 => 0 | 01 => 01 | 1 => 1",
    ),
    "power": (lambda: call(aten.pow.Tensor_Scalar, X, 3.0), "0 => 0 | 01 => 01 | 1 => 1"),
    "sum of two": (lambda: call(aten.add.Tensor, X, normal(20)), "0 . => 0 | 01 0 => 01 | 1 0 => 1"),
    "sum with rows": (
        lambda: call(aten.add.Tensor, CUBE, normal(6, 1)),
        "0 . => 0 | 01 0 => 01 | 012 0 => 012 | 1 0 => 1 | 12 0 => 12 | 2 . => 2",
    ),
    "product": (lambda: call(aten.mul.Tensor, X, normal(24, 1)), "0 0 => 0 | 01 0 => 01 | 1 . => 1"),
    "quotient": (lambda: call(aten.div.Tensor, X, torch.tensor(3.0)), "0 . => 0 | 01 . => 01 | 1 . => 1"),
    "difference of a thing with itself": (lambda: call(aten.sub.Tensor, X, X), "0 => 0 | 01 => 01 | 1 => 1"),
    "comparison": (lambda: call(aten.ne.Scalar, TARGETS, 3), "0 => 0"),
    "softmax": (lambda: call(aten._softmax.default, CUBE, -1, False), "0 => 0 | 01 => 01 | 1 => 1"),
    "softmax of columns": (lambda: call(aten._softmax.default, CUBE, 1, False), "0 ~> 0 | 2 ~> 2"),
    "softmax's gradient": (
        lambda: softmax_backward(aten._softmax_backward_data.default, aten._softmax, -1),
        "0 0 => 0 | 01 01 => 01 | 1 1 => 1",
    ),
    "log softmax": (lambda: call(aten._log_softmax.default, CUBE, 2, False), "0 => 0 | 01 => 01 | 1 => 1"),
    "log softmax of the first": (
        lambda: call(aten._log_softmax.default, CUBE, 0, False),
        "1 ~> 1 | 12 ~> 12 | 2 ~> 2",
    ),
    "log softmax's gradient": (
        lambda: softmax_backward(aten._log_softmax_backward_data.default, aten._log_softmax, 2),
        "0 0 => 0 | 01 01 => 01 | 1 1 => 1",
    ),
    "gather": (lambda: call(aten.gather.default, X, 1, numbers(20, 24, 3)), "0 0 => 0"),
    "scatter numbers": (lambda: call(aten.scatter.value, X, 1, numbers(20, 24, 1), 2.0), "0 0 => 0"),
    "scatter": (lambda: call(aten.scatter.src, X, 1, numbers(20, 24, 1), normal(24, 1)), "0 0 0 => 0"),
    "add up": (lambda: call(aten.scatter_add.default, X, 1, numbers(20, 24, 3), normal(24, 3)), "0 0 0 => 0"),
    "together": (lambda: call(aten.cat.default, [X, normal(24, 4)], 1), "0 0 => 0"),
    "together below": (lambda: call(aten.cat.default, [X, normal(4, 20)]), "1 1 => 1"),
    "running sum": (lambda: call(aten.cumsum.default, CUBE, 1), "0 => 0 | 2 => 2"),
    "padding": (lambda: call(aten.constant_pad_nd.default, CUBE, [0, 2, 1, 0], 0.5), "0 => 0"),
    "matrices": (lambda: call(aten.mm.default, X, normal(20, 32)), "0 . ~> 0 | 1 0 ~> + | . 1 ~> 1"),
    "turned matrices": (lambda: call(aten.mm.default, X.T, normal(24, 32)), "0 . ~> 0 | 1 0 ~> + | . 1 ~> 1"),
    "matrices, half": (
        lambda: call(aten.mm.default, X.bfloat16(), normal(20, 32).bfloat16()),
        "0 . ~> 0 | 1 0 ~> + | . 1 ~> 1",
    ),
    "matrices and bias": (
        lambda: call(aten.addmm.default, normal(32), X, normal(20, 32)),
        "0 . 1 ~> 1 | . 0 . ~> 0",
    ),
    "matrices and more": (
        lambda: call(aten.addmm.default, normal(24, 32), X, normal(20, 32), beta=0.5),
        "0 0 . ~> 0 | 1 . 1 ~> 1",
    ),
    "batches": (
        lambda: call(aten.bmm.default, CUBE, normal(4, 10, 5)),
        "0 0 ~> 0 | 1 . ~> 1 | 2 1 ~> + | . 2 ~> 2",
    ),
    "batches and more": (
        lambda: call(aten.baddbmm.default, normal(4, 1, 5), CUBE, normal(4, 10, 5)),
        "0 0 0 ~> 0 | 2 . 2 ~> 2 | . 1 . ~> 1",
    ),
    "total": (
        lambda: call(aten.sum.default, CUBE),
        "0 ~> + | 01 ~> + | 012 ~> + | 1 ~> + | 12 ~> + | 2 ~> +",
    ),
    "total of columns": (
        lambda: call(aten.sum.dim_IntList, CUBE, [0, 1], True),
        "0 ~> + | 01 ~> + | 1 ~> + | 2 ~> 2",
    ),
    "total of rows": (lambda: call(aten.sum.dim_IntList, CUBE, [-1]), "0 => 0 | 01 => 01 | 1 => 1 | 2 ~> +"),
    "total in the middle": (lambda: call(aten.sum.dim_IntList, CUBE, [1]), "0 ~> 0 | 1 ~> + | 2 ~> 1"),
    "count": (lambda: call(aten.sum.default, MASK), "0 => + | 01 => + | 1 => +"),
    "mean of rows": (lambda: call(aten.mean.dim, CUBE, [-1], True), "0 => 0 | 01 => 01 | 1 => 1"),
    "mean of columns": (lambda: call(aten.mean.dim, CUBE, [0]), "1 ~> 0 | 12 ~> 01 | 2 ~> 1"),
    "maximum": (lambda: call(aten.amax.default, CUBE, [2]), "0 => 0 | 01 => 01 | 1 => 1"),
    "log of sums": (lambda: call(aten.logsumexp.default, CUBE, [2], True), "0 => 0 | 01 => 01 | 1 => 1"),
    "layer norm": (
        lambda: call(aten.native_layer_norm.default, CUBE, [10], normal(10), normal(10), 1e-5),
        "0 . . => 0 0 0 | 01 . . => 01 01 01",
    ),
    "wide layer norm": (
        lambda: call(aten.native_layer_norm.default, CUBE, [6, 10], None, None, 1e-5),
        "0 => 0 0 0",
    ),
    "layer norm's gradient": (
        lambda: layer_norm_backward(True, True, True),
        "0 0 0 0 . . ~> 0 + + | 01 01 01 01 . . ~> 01 + +",
    ),
    "layer norm's gradients of weights": (
        lambda: layer_norm_backward(False, True, True),
        "0 0 0 0 . . ~> - + + | 01 01 01 01 . . ~> - + +",
    ),
    "group norm": (
        lambda: call(aten.native_group_norm.default, IMAGES, normal(4), normal(4), 6, 4, 64, 2, 1e-5),
        "0 . . => 0 0 0",
    ),
    "group norm's gradient": (lambda: group_norm_backward(True, True, True), "0 0 0 0 . ~> 0 + +"),
    "group norm's gradients of weights": (
        lambda: group_norm_backward(False, True, True),
        "0 0 0 0 . ~> - + +",
    ),
    "losses": (
        lambda: call(aten.nll_loss_forward.default, X.log_softmax(1), TARGETS, None, 0, 3),
        "0 0 => 0 +",
    ),
    "weighted losses": (
        lambda: call(aten.nll_loss_forward.default, X.log_softmax(1), TARGETS, WEIGHTS, 0, 3),
        "0 0 . => 0 +",
    ),
    "sum of losses": (
        lambda: call(aten.nll_loss_forward.default, X.log_softmax(1), TARGETS, WEIGHTS, 2, 3),
        "0 0 . ~> + +",
    ),
    "gradient of losses": (lambda: nll_backward(0), "0 0 0 . => 0"),
    "gradient of a sum of losses": (lambda: nll_backward(2, WEIGHTS), ". 0 0 . . => 0"),
    "gradient of a mean of losses": (lambda: nll_backward(1, WEIGHTS), ". 0 0 . . => 0"),
    "embedding": (lambda: call(aten.embedding.default, X, numbers(24, 6, 5)), ". 0 => 0 | . 01 => 01"),
    "embedding's gradient": (
        lambda: call(aten.embedding_dense_backward.default, normal(6, 5, 8), numbers(24, 6, 5), 24, 2, False),
        "0 0 ~> + | 01 01 ~> +",
    ),
    "convolution": (
        lambda: call(aten.convolution.default, IMAGES, normal(5, 4, 3, 3), normal(5), *CONVOLUTION),
        "0 . . ~> 0",
    ),
    "convolution's gradient": (lambda: convolution_backward(True, True, True), "0 0 . ~> 0 + +"),
    "convolution's gradients of weights": (lambda: convolution_backward(False, True, True), "0 0 . ~> - + +"),
    "attention": (lambda: call(ATTENTION, *heads(), 0.0, True), "0 0 0 => 0 0"),
    "gradient of attention": (attention_backward, "0 0 0 0 0 0 => 0 0 0"),
    "maxima": (lambda: call(aten.max_pool2d_with_indices.default, IMAGES, [2, 2]), "0 => 0 0"),
    "gradient of maxima": (lambda: pool_backward(), "0 0 0 => 0"),
    "means": (lambda: call(aten.avg_pool2d.default, IMAGES, [2, 2]), "0 => 0"),
    "gradient of means": (
        lambda: call(
            aten.avg_pool2d_backward.default,
            normal(6, 4, 4, 4),
            IMAGES,
            [2, 2],
            [2, 2],
            [0, 0],
            False,
            True,
            None,
        ),
        "0 0 => 0",
    ),
    "number": (lambda: call(aten.full.default, [24, 20], 1.5), "=> 0 | => 01 | => 1"),
    "view": (lambda: call(aten.view.default, CUBE, [24, 10]), "01 => 0 | 012 => 01 | 2 => 1"),
    "view of views": (
        lambda: call(aten.view.default, CUBE, [4, 2, 3, 10]),
        "0 => 0 | 01 => 012 | 012 => 0123 | 1 => 12 | 12 => 123 | 2 => 3",
    ),
    "view in other rows": (lambda: call(aten.view.default, X, [20, 24]), "01 => 01"),
    "view after a product": (
        lambda: call(aten._unsafe_view.default, X, [4, 6, 20]),
        "0 => 01 | 01 => 012 | 1 => 2",
    ),
    "turned": (lambda: call(aten.t.default, X), "0 => 1 | 1 => 0"),
    "exchanged": (lambda: call(aten.transpose.int, CUBE, 0, 1), "0 => 1 | 1 => 0 | 2 => 2"),
    "permuted": (lambda: call(aten.permute.default, CUBE, [2, 0, 1]), "0 => 1 | 01 => 12 | 1 => 2 | 2 => 0"),
    "new dimension": (lambda: call(aten.unsqueeze.default, CUBE, 1), "0 => 0 | 1 => 2 | 12 => 23 | 2 => 3"),
    "new last dimension": (
        lambda: call(aten.unsqueeze.default, CUBE, -1),
        "0 => 0 | 01 => 01 | 012 => 012 | 1 => 1 | 12 => 12 | 2 => 2",
    ),
    "lost dimension": (lambda: call(aten.squeeze.dim, normal(6, 1, 4), 1), "0 => 0 | 2 => 1"),
    "one of a dimension": (lambda: call(aten.select.int, CUBE, 1, -1), "0 => 0 | 2 => 1"),
    "expanded": (
        lambda: call(aten.expand.default, normal(6, 1), [4, 6, 10]),
        "0 => 1 | . => 0 | 0 => 01 | 0 => 012 | 0 => 12 | . => 2",
    ),
    "slice": (lambda: call(aten.slice.Tensor, CUBE, 1, 2, 5), "0 => 0 | 2 => 2"),
    "first slice": (lambda: call(aten.slice.Tensor, CUBE, 0, 1), "1 => 1 | 12 => 12 | 2 => 2"),
    "apart": (
        lambda: call(aten.detach.default, X),
        "0 => 0 | 01 => 01 | 1 => 1",
    ),
    "the same": (
        lambda: call(aten.alias.default, CUBE),
        "0 => 0 | 01 => 01 | 012 => 012 | 1 => 1 | 12 => 12 | 2 => 2",
    ),
    "mantissas": (lambda: call(aten.frexp.Tensor, X), "0 => 0 0 | 01 => 01 01 | 1 => 1 1"),
    "new zeros": (lambda: call(aten.new_zeros.default, normal(24, 1), [24, 20]), "0 => 0 | . => 01 | . => 1"),
    "zeros of a type": (
        lambda: call(aten.new_zeros.default, normal(3), [24, 20]),
        ". => 0 | . => 01 | . => 1",
    ),
    "zeros": (
        lambda: call(aten.zeros_like.default, CUBE),
        "0 => 0 | 01 => 01 | 012 => 012 | 1 => 1 | 12 => 12 | 2 => 2",
    ),
    "filled": (
        lambda: call(aten.full_like.default, CUBE, 2.0),
        "0 => 0 | 01 => 01 | 012 => 012 | 1 => 1 | 12 => 12 | 2 => 2",
    ),
    "slice's gradient": (
        lambda: call(aten.slice_backward.default, CUBE, [4, 9, 10], 1, 2, 8, 1),
        "0 => 0 | 2 => 2",
    ),
    "one's gradient": (
        lambda: call(aten.select_backward.default, normal(4, 10), [4, 6, 10], 1, -1),
        "0 => 0 | 1 => 2",
    ),
    "losses of images": (
        lambda: call(
            aten.nll_loss2d_forward.default, IMAGES.log_softmax(1), numbers(4, 6, 8, 8), normal(4).abs(), 0, 3
        ),
        "0 0 . => 0 +",
    ),
    "sum of losses of images": (
        lambda: call(
            aten.nll_loss2d_forward.default, IMAGES.log_softmax(1), numbers(4, 6, 8, 8), normal(4).abs(), 2, 3
        ),
        "0 0 . ~> + +",
    ),
    "gradient of losses of images": (lambda: nll2d_backward(0), "0 0 0 . . => 0"),
    "gradient of a sum of losses of images": (lambda: nll2d_backward(2), ". 0 0 . . => 0"),
}
"""Op → where it may be cut: dimensions of operands => of results; ~> if bits may differ, on some machine.

+ = a sum, - = there is no such result, . = none of the rows.
"""
REFUSED: Mapping[str, Callable[[], Call]] = {
    "gather less": lambda: call(aten.gather.default, X, 1, numbers(20, 8, 3)),
    "gather one": lambda: call(aten.gather.default, X, 1, numbers(20, 1, 3)),
    "scatter one": lambda: call(aten.scatter.value, X, 1, numbers(20, 1, 3), 2.0),
    "add up one": lambda: call(aten.scatter_add.default, X, 1, numbers(20, 1, 3), normal(24, 3)),
    "add up of more": lambda: call(aten.scatter_add.default, X, 1, numbers(20, 24, 3), normal(30, 3)),
    "matrix squared": lambda: call(aten.mm.default, SQUARE, SQUARE),
    "matrices and one of them": lambda: call(aten.addmm.default, SQUARE, normal(20, 20), SQUARE),
    "mean of losses": lambda: call(aten.nll_loss_forward.default, X.log_softmax(1), TARGETS, None, 1, 3),
    "one loss": lambda: call(aten.nll_loss_forward.default, normal(20), torch.tensor(4), None, 2, -100),
    "embedding's gradient by frequency": lambda: call(
        aten.embedding_dense_backward.default, normal(6, 5, 8), numbers(24, 6, 5), 24, 2, True
    ),
    "dimension that stays": lambda: call(aten.squeeze.dim, CUBE, 1),
    "scatter of more": lambda: call(aten.scatter.src, X, 1, numbers(20, 24, 1), normal(30, 1)),
    "mean of losses of images": lambda: call(
        aten.nll_loss2d_forward.default, IMAGES.log_softmax(1), numbers(4, 6, 8, 8), None, 1, 3
    ),
    "one loss' gradient": lambda: call(
        aten.nll_loss_backward.default,
        torch.tensor(1.0),
        normal(20),
        torch.tensor(4),
        None,
        2,
        -100,
        torch.tensor(1.0),
    ),
    "batch norm": lambda: call(
        aten.native_batch_norm.default, IMAGES, normal(4), normal(4), None, None, True, 0.1, 1e-5
    ),
    "mean": lambda: call(aten.mean.default, CUBE),
    "dropout": lambda: call(aten.native_dropout.default, X, 0.5, True),
    "random": lambda: call(aten.bernoulli.p, X, 0.5),
    "sort": lambda: call(aten.sort.default, X, 1),
    "picked": lambda: call(aten.index.Tensor, X, [numbers(24, 5)]),
    "nonzero": lambda: call(aten.nonzero.default, X),
}
"""Ops, or uses of them, that are never cut."""


def node_of(each: Call) -> tuple[Node, dict[Node, Tensor]]:
    """The call as a node of a graph, and the tensors that its operands stand for."""
    graph, nodes, values = Graph(), {}, {}

    def operand(x: Tensor) -> Node:
        if id(x) not in nodes:
            nodes[id(x)] = graph.placeholder(f"x{len(nodes)}")
            nodes[id(x)].meta["val"] = values[nodes[id(x)]] = x
        return nodes[id(x)]

    args, kwargs = tree_map(lambda x: operand(x) if isinstance(x, Tensor) else x, (each.args, each.kwargs))
    node = graph.call_function(each.target, args, kwargs)
    node.meta["val"] = each.run()
    return node, values


def results(node: Node) -> list[Tensor | None]:
    return in_list(node.meta["val"])


def in_list(made: Any) -> list[Tensor | None]:
    return list(made) if isinstance(made, tuple | list) else [made]


def all_cuts(node: Node) -> Iterator[CutOp]:
    """All ways to cut an op, each once, as its operands and results are asked for them."""
    found: set[str] = set()
    shown = [*((x, x.meta["val"]) for x in node.all_input_nodes), *enumerate(results(node))]
    for at, value in shown:
        rank = 0 if value is None else value.dim()
        for start, stop in itertools.combinations(range(rank + 1), 2):
            cut = Cut(start, tuple(value.shape[start:stop]))
            op = roles(node, at, cut) if cut.rows > 1 else None
            if op is not None:
                assert at not in op.operands or op.operands[at] == cut
                assert isinstance(at, Node) or op.results[at] == cut
                if (text := as_text(node, op)) not in found:
                    found.add(text)
                    yield op


def as_text(node: Node, op: CutOp) -> str:
    """As "01 . 0 +": the dimensions of operands, then of results; + = a sum, - = there is none."""
    operands = [dims(x.meta["val"], op.operands.get(x)) for x in node.all_input_nodes]
    made = [
        "+" if role == SUM else "-" if role is None else dims(y, role)
        for y, role in zip(results(node), op.results, strict=True)
    ]
    return " ".join((*operands, ">", *made))


def dims(value: Tensor, cut: Cut | None) -> str:
    """The dimensions of a tensor that are rows."""
    rows = [] if cut is None else zip(range(cut.start, cut.stop), cut.sizes, strict=True)
    return "".join(str(d) for d, n in rows if 0 <= d < value.dim() and value.shape[d] == n > 1) or "."


def box(cut: Cut, rows: range) -> list[range] | None:
    """Some rows, taken as one, as ranges along each dimension; None = they are no box."""
    numbered = torch.arange(cut.rows).view(cut.sizes)
    inside = (numbered >= rows.start) & (numbered < rows.stop)
    found = [range(int(places.min()), int(places.max()) + 1) for places in inside.nonzero().T]
    return found if math.prod(map(len, found)) == len(rows) else None


def part(value: Tensor, cut: Cut, rows: range) -> Tensor:
    """A view of some rows of a tensor, which may be broadcast."""
    for d, r, n in zip(range(cut.start, cut.stop), box(cut, rows) or (), cut.sizes, strict=True):
        if 0 <= d < value.dim() and value.shape[d] == n:
            value = value.narrow(d, r.start, len(r))
    return value


def divisions(op: CutOp) -> list[list[range]]:
    """Divisions into pieces that are boxes in all tensors: the most, the fewest, some between."""
    cuts = [cut for cut in (*op.operands.values(), *op.results) if isinstance(cut, Cut)]
    (n,) = {cut.rows for cut in cuts}
    found = []
    for step in range(1, n):
        pieces = [range(start, min(start + step, n)) for start in range(0, n, step)]
        if all(box(cut, rows) is not None for cut in {*cuts} for rows in pieces):
            found.append(pieces)
    return [found[0], found[len(found) // 2], found[-1]]


def in_pieces(node: Node, values: dict[Node, Tensor], op: CutOp, pieces: list[range]) -> list[Tensor | None]:
    """Run an op piece by piece."""
    whole = [
        None if role is None else torch.zeros_like(y) if role == SUM else torch.full_like(y, -7)
        for y, role in zip(results(node), op.results, strict=True)
    ]
    for rows in pieces:
        args, kwargs = map_arg(
            (node.args, node.kwargs),
            lambda x, rows=rows: part(values[x], op.operands[x], rows) if x in op.operands else values[x],
        )
        first = next(cut for cut in (*op.results, *op.operands.values()) if isinstance(cut, Cut))
        found = zip(range(first.start, first.stop), box(first, rows) or (), strict=True)
        args = in_piece(node, args, {d: len(r) for d, r in found})
        made = in_list(node.target(*args, **kwargs))
        for y, role, piece in zip(whole, op.results, made, strict=True):
            if role == SUM:
                y += piece
            elif role is not None:
                shown = part(y, role, rows)
                assert shown.shape == piece.shape
                shown.copy_(piece)
    return whole


def is_near(x: Tensor, y: Tensor) -> bool:
    """Whether numbers are equal up to rounding: for single precision, within 1e-6 of their norm."""
    most = 1e-6 if x.dtype == torch.float32 else torch.finfo(x.dtype).eps
    return bool((x.double() - y.double()).norm() <= most * x.double().norm())


@pytest.mark.parametrize("name", CASES)
def test_pieces_together_are_the_whole(name: str) -> None:
    make, table = CASES[name]
    is_exact = {text.replace("=>", ">").replace("~>", ">"): "=>" in text for text in table.split(" | ")}
    node, values = node_of(make())
    found = {as_text(node, op): op for op in all_cuts(node)}
    assert found.keys() == is_exact.keys()
    for text, op in found.items():
        for pieces in divisions(op):
            for whole, made in zip(results(node), in_pieces(node, values, op, pieces), strict=True):
                if whole is None or made is None:
                    assert whole is made
                elif is_exact[text]:
                    assert torch.equal(whole, made), (text, pieces)
                else:
                    assert is_near(whole, made), (text, pieces)


def test_each_rule_of_the_table_has_a_case() -> None:
    assert {make().target for make, _ in CASES.values()} >= cut_rules._RULES.keys()


@pytest.mark.parametrize("name", REFUSED)
def test_other_ops_and_other_uses_are_never_cut(name: str) -> None:
    node, _ = node_of(REFUSED[name]())
    assert not list(all_cuts(node))


@pytest.mark.parametrize("name", CASES)
def test_a_view_shares_its_storage_and_no_other_op_does(name: str) -> None:
    node, values = node_of(CASES[name][0]())
    mine = {x.untyped_storage().data_ptr() for x in values.values()}
    shares = any(y is not None and y.untyped_storage().data_ptr() in mine for y in results(node))
    assert is_view(node) == shares

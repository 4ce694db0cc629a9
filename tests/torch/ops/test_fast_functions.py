"""Functions that generated code calls in the place of ops: the same bits, random numbers included."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from checkmate_torch.ops.fast_functions import dropout, dropout_backward, fastest, fastest_call

aten = torch.ops.aten
PROBABILITIES = (0.0, 0.1, 0.3, 0.5, 0.123, 0.9999, 1.0)


class Call(NamedTuple):
    """An op and its arguments."""

    op: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = MappingProxyType({})


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X, Y, ROW = numbers(4, 6), numbers(4, 6, seed=1), numbers(6, seed=2)
IMAGES, WEIGHT = numbers(2, 3, 8, 8), numbers(5, 3, 3, 3)
CALLS = [
    Call(aten.add.Tensor, (X, Y), {"alpha": 0.3}),
    Call(aten.add.Tensor, (X, 2.5)),
    Call(aten.add.Scalar, (X, 2.5)),
    Call(aten.add_.Tensor, (X, Y)),
    Call(aten.addmm.default, (ROW, numbers(4, 3), numbers(3, 6))),
    Call(aten.cat.default, ([X, Y], 1)),
    Call(aten.clone.default, (X,), {"memory_format": torch.contiguous_format}),
    Call(aten.convolution.default, (IMAGES, WEIGHT, None, [2, 1], [1, 1], [1, 1], False, [0, 0], 1)),
    Call(aten.div.Tensor, (X, Y)),
    Call(aten.div.Tensor_mode, (X, Y), {"rounding_mode": "floor"}),
    Call(aten.expand.default, (ROW, [4, -1])),
    Call(aten.mean.dim, (X, [-1], True)),
    Call(aten.mul.Scalar, (X, 1 / 3)),
    Call(aten.mul_.Tensor, (X, ROW)),
    Call(aten.native_layer_norm.default, (X, [6], ROW, ROW, 1e-5)),
    Call(aten.permute.default, (IMAGES, [0, 2, 3, 1])),
    Call(aten.pow.Tensor_Scalar, (X, 3)),
    Call(aten.pow.Scalar, (2.0, X)),
    Call(aten.select.int, (X, 1, -1)),
    Call(aten.squeeze.dims, (IMAGES[:, :1, :1], [1, 2])),
    Call(aten.sub.Tensor, (X, Y)),
    Call(aten.sum.default, (X,)),
    Call(aten.sum.dim_IntList, (X, [0], True), {"dtype": torch.float64}),
    Call(aten.transpose.int, (IMAGES, -1, 0)),
    Call(aten.view.default, (X, [3, -1])),
    Call(aten.view.dtype, (X, torch.int32)),
    Call(aten.where.self, (X > 0, X, Y)),
    Call(aten.where.ScalarOther, (X > 0, X, 0.5)),
]


@pytest.mark.parametrize("call", CALLS, ids=[str(call.op) for call in CALLS])
def test_a_direct_call_gives_the_bits_of_its_op(call: Call) -> None:
    function: Any = fastest(call.op)
    assert function is not call.op
    results = []
    for run, given in ((call.op, call.args), (function, call.args), fastest_call(call.op, call.args)):
        args = [a.clone() if isinstance(a, Tensor) else a for a in given]
        result = run(*args, **call.kwargs)
        results.append(result if isinstance(result, tuple) else (result,))
    for one, *others in zip(*results, strict=True):
        for other in others:
            assert (one.dtype, one.stride()) == (other.dtype, other.stride())
            assert torch.equal(one, other)


def test_sizes_are_given_one_by_one_where_there_are_any() -> None:
    assert fastest_call(aten.view.default, (X, [3, -1])) == (Tensor.view, (X, 3, -1))
    assert fastest_call(aten.view.default, (X, [])) == (Tensor.view, (X, []))
    assert fastest_call(aten.view.dtype, (X, torch.int32)) == (Tensor.view, (X, torch.int32))
    assert fastest_call(aten.sum.dim_IntList, (X, [0])) == (torch.sum, (X, [0]))


@pytest.mark.parametrize("op", [aten.mm.out, aten.convolution_backward.default, torch.relu])
def test_other_functions_stay(op: Any) -> None:
    assert fastest(op) is op


@pytest.mark.parametrize("p", PROBABILITIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("size", [0, 7, 64])
def test_dropout_draws_and_gives_what_its_op_does(
    p: float, dtype: torch.dtype, transposed: bool, size: int
) -> None:
    x = numbers(size, 65).to(dtype)
    x = x.t() if transposed else x
    if size:
        x[0, 0] = torch.inf
    results = []
    for run, back in (
        (aten.native_dropout.default, aten.native_dropout_backward.default),
        (dropout, dropout_backward),
    ):
        torch.manual_seed(3)
        y, mask = run(x, p, True)
        gradient = back(x, mask, 1 / (1 - p) if p < 1 else 0.0)
        results.append([y, mask, gradient, torch.get_rng_state()])
    for one, other in zip(*results, strict=True):
        assert (one.dtype, one.stride()) == (other.dtype, other.stride())
        assert torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))


def test_dropout_in_evaluation_drops_nothing() -> None:
    y, mask = dropout(X, 0.5, False)
    assert torch.equal(y, X)
    assert bool(mask.all())

"""The functions that generated code calls: for each op the fastest that gives the same bits.

- *Direct*: PyTorch also offers most ops as functions of ``torch`` or methods of ``Tensor``. Such a call takes
  about two thirds of the time of a call through ``torch.ops``: one microsecond less.
- *Dropout* on a CPU: the op multiplies numbers by a mask of booleans, which takes several times the time of a
  product of numbers. Read as bytes, the same mask is converted as fast as memory is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache

import torch
from torch import Tensor
from torch.fx.node import Argument, Target

from checkmate_torch.private import OpOverload

__all__ = ["fastest", "fastest_call"]

_aten = torch.ops.aten
_OF_TORCH = (
    *("_log_softmax", "_softmax", "add", "addmm", "bmm", "cat", "clone", "convolution", "div", "exp", "mean"),
    *(
        "_native_batch_norm_legit",
        "mm",
        "mul",
        "native_group_norm",
        "native_layer_norm",
        "neg",
        "permute",
        "pow",
        "relu",
        "rsqrt",
    ),
    *("select", "sigmoid", "squeeze", "sub", "sum", "t", "tanh", "transpose", "unsqueeze", "where"),
)
_TAKE_SIZES = frozenset({Tensor.view, Tensor.expand})
_OF_TENSOR = ("add_", "div_", "expand", "mul_", "sub_", "view")


def fastest(target: Target) -> Target:
    """The fastest callable with the same bits as this op; unknown targets are returned unchanged."""
    return _replacements().get(target, target) if isinstance(target, OpOverload) else target


def fastest_call(target: Target, args: Sequence[Argument]) -> tuple[Target, tuple[Argument, ...]]:
    """A call with the fastest function; where it may take sizes one by one, that is faster than in a list."""
    function, (first, *rest) = fastest(target), args or [None]
    if function in _TAKE_SIZES and len(rest) == 1 and isinstance(rest[0], list | tuple) and rest[0]:
        return function, (first, *rest[0])
    return function, tuple(args)


@cache
def _replacements() -> Mapping[object, Callable[..., object]]:
    return {
        **{op: getattr(torch, name) for name in _OF_TORCH for op in _overloads(name)},
        **{op: getattr(Tensor, name) for name in _OF_TENSOR for op in _overloads(name)},
        _aten.native_dropout.default: dropout,
        _aten.native_dropout_backward.default: dropout_backward,
    }


def _overloads(name: str) -> Iterator[OpOverload]:
    """The forms of an op, less those that write to a tensor named ``out``."""
    packet = getattr(_aten, name)
    return (getattr(packet, form) for form in packet.overloads() if "out" not in form)


def dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """The op ``native_dropout``: its result in the shape of x, and the mask of the numbers that are kept."""
    if not _is_plain(x) or train is False or p == 1:
        result: tuple[Tensor, Tensor] = _aten.native_dropout.default(x, p, train)
        return result
    mask = torch.empty_like(x, dtype=torch.bool).bernoulli_(1 - p)
    return _scaled(x, mask, 1 / (1 - p)), mask


def dropout_backward(gradient: Tensor, mask: Tensor, scale: float) -> Tensor:
    """The op ``native_dropout_backward``; all tensors have the same shape."""
    if not (_is_plain(gradient) and mask.is_contiguous()):
        result: Tensor = _aten.native_dropout_backward.default(gradient, mask, scale)
        return result
    return _scaled(gradient, mask, scale)


def _scaled(x: Tensor, mask: Tensor, scale: float) -> Tensor:
    return mask.view(torch.uint8).to(x.dtype).mul_(x).mul_(scale)


def _is_plain(x: Tensor) -> bool:
    """Whether the fast way matches the op, strides and mask included: not empty, contiguous, float32, CPU."""
    return x.device.type == "cpu" and x.dtype == torch.float32 and x.is_contiguous() and x.numel() > 0

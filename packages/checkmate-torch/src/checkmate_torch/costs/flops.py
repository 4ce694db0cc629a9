"""FLOPs of an op from shapes alone, as 2mnk for a product of matrices [m, k] and [k, n].

PyTorch has formulas for products, convolutions and attention; we use its formula for attention on the CPU,
too. Any other op counts one FLOP for each output element, so that no op that moves memory is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils.flop_counter import flop_registry

from checkmate_torch.ops.sizes import largest, typical
from checkmate_torch.ops.storages import shown_by
from checkmate_torch.private import tree_map

__all__ = ["LIKE_ON_GPU", "flops_of", "number_format", "product_flops"]

_aten = torch.ops.aten
LIKE_ON_GPU: dict[object, object] = {
    _aten._scaled_dot_product_flash_attention_for_cpu: _aten._scaled_dot_product_flash_attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        _aten._scaled_dot_product_flash_attention_backward
    ),
}
"""Op without a formula → op whose formula is used; both take the same tensors first."""

_CONVOLUTIONS = (_aten.convolution, _aten.convolution_backward)
_FORMATS = {torch.bfloat16: "bf16", torch.float16: "fp16"}


def flops_of(node: Node) -> float:
    """Floating-point operations of a joint graph's node, from the shapes of its fake tensors."""
    counted = product_flops(node)
    return float(sum(largest(value.numel()) for value in shown_by(node)) if counted is None else counted)


def product_flops(node: Node) -> int | None:
    """The same for products, convolutions and attention; None for other ops."""
    packet = getattr(node.target, "overloadpacket", None)
    formula = flop_registry.get(LIKE_ON_GPU.get(packet, packet))
    if formula is None:
        return None
    args, kwargs = tree_map(typical, map_arg((node.args, dict(node.kwargs)), lambda n: n.meta.get("val")))
    name = getattr(packet, "__name__", "")
    if name.startswith("_scaled_dot_product"):
        args = _with_all_heads(args, 4 if name.endswith("backward") else 3)
    return int(largest(formula(*args, **kwargs, out_val=tree_map(typical, node.meta.get("val")))))


def _with_all_heads(args: Sequence[Any], n: int) -> list[Any]:
    """Arguments of an attention op, the first ``n`` with the queries' number of heads.

    Keys and values may have fewer, one for a group of queries; formulas before PyTorch 2.13 don't know that.
    """
    heads = max(x.shape[1] for x in args[:n])
    full = [x.new_empty((x.shape[0], heads, *x.shape[2:]), device="meta") for x in args[:n]]
    return [*full, *args[n:]]


def number_format(node: Node) -> str:
    """The number format of an op's first floating-point argument, by its name in device tables.

    A sum of products in single precision has factors in half precision, after the summand.
    """
    operands = node.all_input_nodes[node.target is _aten.addmm.dtype :]
    dtypes = [v.dtype for v in shown_by(*operands, node) if v.dtype.is_floating_point]
    if not dtypes or dtypes[0] in _FORMATS:
        return _FORMATS[dtypes[0]] if dtypes else "fp32"
    backends: Any = torch.backends
    convolves = getattr(node.target, "overloadpacket", None) in _CONVOLUTIONS
    setting = backends.cudnn.conv if convolves else backends.cuda.matmul
    return "tf32" if setting.fp32_precision == "tf32" else "fp32"

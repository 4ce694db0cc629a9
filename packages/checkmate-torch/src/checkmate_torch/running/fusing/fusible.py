"""Which ops a compiler fuses with their neighbours: element-wise functions, reductions, and norms."""

from __future__ import annotations

from functools import cache

import torch
from torch.fx import Node

from checkmate_torch.ops.recompute_rules import Pure, is_random, may_run_twice
from checkmate_torch.private import OpOverload, tree_leaves

__all__ = ["is_fusible"]

_aten = torch.ops.aten
_FUNCTIONS = (
    "_batch_norm_with_update_functional",
    "_fused_rms_norm",
    "_fused_rms_norm_backward",
    "_log_softmax",
    "_log_softmax_backward_data",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    "_softmax",
    "_softmax_backward_data",
    "_to_copy",
    "amax",
    "amin",
    "arange",
    "constant_pad_nd",
    "full",
    "full_like",
    "hardswish",
    "hardswish_backward",
    "linalg_vector_norm",
    "mean",
    "native_batch_norm_backward",
    "native_group_norm",
    "native_group_norm_backward",
    "native_layer_norm",
    "native_layer_norm_backward",
    "new_zeros",
    "nll_loss_backward",
    "nll_loss_forward",
    "select_backward",
    "slice_backward",
    "sum",
    "var",
    "var_mean",
    "zeros",
    "zeros_like",
)
"""Functions of PyTorch that its compiler fuses, besides those with the tag ``pointwise``."""


def is_fusible(node: Node) -> bool:
    """Whether a kernel can compute this node together with others: tensors of known sizes on one device."""
    op = node.target
    known = isinstance(op, Pure) or (isinstance(op, OpOverload) and _is_fused(op))
    if not known or is_random(node) or not may_run_twice(node):
        return False
    shown = [leaf for n in (node, *node.all_input_nodes) for leaf in tree_leaves(n.meta.get("val"))]
    tensors = [leaf for leaf in shown if leaf is not None]
    return (
        len(tensors) > 0
        and all(isinstance(x, torch.Tensor) and _is_plain(x) for x in tensors)
        and len({x.device for x in tensors}) == 1
    )


@cache
def _is_fused(op: OpOverload) -> bool:
    if op.overloadpacket is _aten.copy:
        return False
    return torch.Tag.pointwise in op.tags or op.overloadpacket in _packets()


@cache
def _packets() -> frozenset[object]:
    return frozenset(getattr(_aten, name) for name in _FUNCTIONS if hasattr(_aten, name))


def _is_plain(x: torch.Tensor) -> bool:
    """Whether a tensor is strided, real, not empty, and of a size that is known."""
    sizes = (*x.shape, *x.stride(), x.storage_offset())
    known = not any(isinstance(n, torch.SymInt) for n in sizes)
    return known and x.layout == torch.strided and not x.is_complex() and x.numel() > 0

"""The attention kernel that a GPU runs, chosen for one that is not here by PyTorch's own rules.

    cuDNN, flash       keep q, k, v, the output, and for each row the logarithm of its sum of exponentials
    memory-efficient   keeps the mask too, as numbers
    math               products and a softmax, which keep all scores

PyTorch asks the device which kernels it has; without one it takes the last. The rules are those of
``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`` in PyTorch 2.13, for dense tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from checkmate_torch.private import ENTER_AUTOCAST
from checkmate_torch.target import current_target

__all__ = ["Kernel", "RunsKernelsOfTarget", "kernel_of", "with_kernels_of_target"]

_aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)


class Kernel(Enum):
    """A kernel of scaled dot-product attention on CUDA."""

    CUDNN = "cuDNN"
    FLASH = "flash"
    EFFICIENT = "memory-efficient"
    MATH = "math"


def with_kernels_of_target(gm: GraphModule) -> GraphModule:
    """The captured graph with the kernels of the device that it is traced for: attention, and autocast's."""
    target = current_target()
    if target is None or target.capability is None:
        return gm
    for module in gm.modules():
        if isinstance(module, GraphModule):
            for node in module.graph.find_nodes(op="call_function", target=scaled_dot_product_attention):
                node.target = _attention
            for node in module.graph.find_nodes(op="call_function", target=ENTER_AUTOCAST):
                if node.args[0] == "cuda":
                    node.args = (target.device.type, *node.args[1:])
            module.recompile()
    return gm


class RunsKernelsOfTarget(TorchFunctionMode):
    """Mode in which attention runs the kernel of the device that code is followed for, without a capture."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Replace the function."""
        function = _attention if func is scaled_dot_product_attention else func
        return function(*args, **(kwargs or {}))


def kernel_of(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    capability: tuple[int, int],
    *,
    causal: bool = False,
    grouped: bool = False,
) -> Kernel:
    """The kernel that PyTorch picks on a GPU, of those that ``torch.backends.cuda`` allows.

    Args:
        q: queries ``[…, heads, L, E]``, and likewise keys ``k`` and values ``v``.
        k: of S rows.
        v: of S rows.
        mask: of the scores; None = there is none.
        capability: of the GPU, (major, minor).
        causal: whether later keys are masked.
        grouped: whether several heads of queries share one of keys.
    """
    width, half = q.shape[-1], q.dtype in _HALF
    if q.dim() != 4 or (q.dtype == torch.bfloat16 and capability < (8, 0)):
        return Kernel.MATH
    square = q.shape[-2] == k.shape[-2] or not causal
    fused = half and width == k.shape[-1] == v.shape[-1] and width <= 256 and square
    prefers_cudnn = capability in ((9, 0), (10, 0)) and width % 8 == 0 and width <= 128
    flash, efficient, cudnn = _allowed()
    if fused and prefers_cudnn and cudnn:
        return Kernel.CUDNN
    if fused and mask is None and capability >= (8, 0) and flash:
        return Kernel.FLASH
    step = 8 if half else 4
    aligned = width % step == 0 and v.shape[-1] % step == 0
    if efficient and (half or q.dtype == torch.float32) and aligned and not grouped:
        return Kernel.EFFICIENT
    return Kernel.MATH


def _allowed() -> tuple[bool, bool, bool]:
    """Whether the user's settings allow the kernels flash, memory-efficient and cuDNN."""
    settings: Any = torch.backends.cuda
    return settings.flash_sdp_enabled(), settings.mem_efficient_sdp_enabled(), settings.cudnn_sdp_enabled()


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """As ``scaled_dot_product_attention`` on the device that the step is traced for."""
    target = current_target()
    if target is None or target.capability is None:
        return scaled_dot_product_attention(
            q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    kernel = kernel_of(q, k, v, attn_mask, target.capability, causal=is_causal, grouped=enable_gqa)
    if kernel is Kernel.MATH:
        return _aten._scaled_dot_product_attention_math(
            q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]
    width = q.shape[-1]
    scale = width**-0.5 if scale is None else scale
    if kernel is Kernel.FLASH:
        q, k, v = (pad(x, (0, -width % 8)) if width % 8 else x for x in (q, k, v))
        y = _aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, False, scale=scale)[0]
        return y[..., :width]
    mask = attn_mask
    if mask is not None and mask.dtype == torch.bool:
        zero = torch.zeros((), dtype=q.dtype, device=q.device)
        mask = torch.where(mask, zero, torch.full((), -torch.inf, dtype=q.dtype, device=q.device))
    trains = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    if kernel is Kernel.CUDNN:
        return _aten._scaled_dot_product_cudnn_attention(
            q, k, v, mask, trains, dropout_p, is_causal, False, scale=scale
        )[0]
    if mask is not None:
        rows, columns = q.shape[-2], k.shape[-2]
        mask = pad(mask, (0, -columns % 16))[..., :columns] if columns % 16 else mask
        mask = mask.expand(*q.shape[:-2], rows, columns)
    return _aten._scaled_dot_product_efficient_attention(
        q, k, v, mask, trains, dropout_p, is_causal, scale=scale
    )[0]

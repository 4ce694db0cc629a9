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
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from checkmate_torch.ops.target_device import current_target
from checkmate_torch.private import ENTER_AUTOCAST

__all__ = ["Call", "Kernel", "RunsKernelsOfTarget", "with_kernels_of_target"]

_aten = torch.ops.aten


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


class Call(NamedTuple):
    """A call of attention on a GPU.

    Attributes:
        q: queries ``[batch, heads, L, E]``, and likewise keys ``k`` and values ``v``.
        k: of S rows.
        v: of S rows.
        mask: of the scores; None = there is none.
        causal: whether later keys are masked.
        grouped: whether several heads of queries share one of keys.
        capability: of the GPU, (major, minor).
    """

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    causal: bool
    grouped: bool
    capability: tuple[int, int]

    @property
    def kernel(self) -> Kernel:
        """The kernel that PyTorch picks, of those that ``torch.backends.cuda`` allows."""
        backends: Any = torch.backends.cuda
        rules = (
            (Kernel.CUDNN, backends.cudnn_sdp_enabled(), self._suits_cudnn),
            (Kernel.FLASH, backends.flash_sdp_enabled(), self._suits_flash),
            (Kernel.EFFICIENT, backends.mem_efficient_sdp_enabled(), self._suits_efficient),
        )
        suited = (kernel for kernel, allowed, suits in rules if allowed and suits)
        return next(suited, Kernel.MATH) if self.q.dim() == 4 else Kernel.MATH

    @property
    def _width(self) -> int:
        return self.q.shape[-1]

    @property
    def _is_half(self) -> bool:
        return self.q.dtype == torch.float16 or (self.q.dtype == torch.bfloat16 and self.capability >= (8, 0))

    @property
    def _suits_flash(self) -> bool:
        return self._is_fused and self.mask is None and self._width <= 256 and self.capability >= (8, 0)

    @property
    def _suits_cudnn(self) -> bool:
        narrow = self._width <= 128 and self._width % 8 == 0
        return self._is_fused and narrow and self.capability in ((9, 0), (10, 0))

    @property
    def _is_fused(self) -> bool:
        square = not self.causal or self.q.shape[-2] == self.k.shape[-2]
        return self._is_half and square and self._width == self.k.shape[-1] == self.v.shape[-1]

    @property
    def _suits_efficient(self) -> bool:
        step = 8 if self._is_half else 4
        aligned = self._width % step == 0 and self.v.shape[-1] % step == 0
        return (self._is_half or self.q.dtype == torch.float32) and aligned and not self.grouped


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
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
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    kernel = Call(query, key, value, attn_mask, is_causal, enable_gqa, target.capability).kernel
    if kernel is Kernel.MATH:
        return _aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]
    width = query.shape[-1]
    scale = width**-0.5 if scale is None else scale
    if kernel is Kernel.FLASH:
        padded = [pad(x, (0, -width % 8)) if width % 8 else x for x in (query, key, value)]
        y = _aten._scaled_dot_product_flash_attention(*padded, dropout_p, is_causal, False, scale=scale)[0]
        return y[..., :width]
    mask = _in_numbers(attn_mask, query)
    trains = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    if kernel is Kernel.CUDNN:
        return _aten._scaled_dot_product_cudnn_attention(
            query, key, value, mask, trains, dropout_p, is_causal, False, scale=scale
        )[0]
    return _aten._scaled_dot_product_efficient_attention(
        query, key, value, _spread(mask, query, key), trains, dropout_p, is_causal, scale=scale
    )[0]


def _in_numbers(mask: Tensor | None, query: Tensor) -> Tensor | None:
    """The mask as numbers that are added to the scores."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    least = torch.scalar_tensor(-torch.inf, dtype=query.dtype, device=mask.device)
    return torch.where(mask, 0.0, least)


def _spread(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """The mask for each head, with rows that start at multiples of 16 numbers."""
    if mask is None:
        return None
    columns = key.shape[-2]
    aligned = pad(mask, (0, -columns % 16))[..., :columns] if columns % 16 else mask
    return aligned.expand(*query.shape[:-1], columns)

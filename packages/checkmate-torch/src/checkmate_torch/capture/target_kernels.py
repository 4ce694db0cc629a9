"""Trace for a GPU that is not here, with the kernels that it would run: attention, dropout, autocast.

    cuDNN, flash       keep q, k, v, the output, and for each row the logarithm of its sum of exponentials
    memory-efficient   keeps the mask too, as numbers
    math               products and a softmax, which keep all scores

PyTorch asks the GPU which attention kernels it has; without a GPU it takes math. The rules here are from
``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`` in PyTorch 2.13, for dense tensors.

Where CPU tensors represent a GPU's, other functions, too, keep for backward what they would keep on CUDA:
dropout, and functions that autocast runs in float32 on CUDA only, such as norms and softmax (listed in
``aten/src/ATen/autocast_mode.h``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.nn import functional
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from checkmate_torch.ops.device import cpu_represents_gpu, current_target
from checkmate_torch.ops.recompute_rules import HALVES
from checkmate_torch.private import tree_map_only

__all__ = ["AttentionCall", "AttentionKernel", "RunsKernelsOfTarget", "with_kernels_of_target"]

_aten = torch.ops.aten
_IN_FLOAT32 = (
    *("acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log1p", "log2", "pow", "__pow__"),
    *("__rpow__", "reciprocal", "rsqrt", "sinh", "tan", "softplus", "layer_norm", "native_layer_norm"),
    *("rms_norm", "group_norm", "cosine_similarity", "dist", "pdist", "cdist", "renorm", "logsumexp"),
    "interpolate",
)
"""Functions that autocast runs on float32 copies of their arguments on CUDA, and not on a CPU."""

_TO_FLOAT32 = ("softmax", "log_softmax", "sum", "prod", "cumsum", "cumprod")
"""Functions that autocast runs with ``dtype=torch.float32`` on CUDA, and not on a CPU."""

_SMOOTHED = 5
"""Place of the argument ``label_smoothing`` of cross entropy, after the targets."""


class AttentionKernel(Enum):
    """A kernel of scaled dot-product attention on CUDA."""

    CUDNN = "cuDNN"
    FLASH = "flash"
    EFFICIENT = "memory-efficient"
    MATH = "math"


def with_kernels_of_target(gm: GraphModule) -> GraphModule:
    """Let a captured graph run the kernels of the device that it is traced for."""
    target = current_target()
    if target is None or target.capability is None:
        return gm
    for module in gm.modules():
        if isinstance(module, GraphModule):
            for node in module.graph.nodes:
                _run_kernel_of_target(node)
            module.recompile()
    return gm


def _run_kernel_of_target(node: Node) -> None:
    """Let a captured call run the kernel of the device that the graph is traced for."""
    if node.op == "call_function":
        node.target = _kernel_of_target(node.target)
    elif node.op == "call_method":
        method = getattr(Tensor, str(node.target), None)
        if (kernel := _kernel_of_target(method)) is not method:
            node.op, node.target = "call_function", kernel


def _kernel_of_target(function: Any) -> Any:
    """The function that the device that a step is traced for runs in the place of this one."""
    if function is scaled_dot_product_attention:
        return _attention
    return _of_cuda().get(function, function) if callable(function) and cpu_represents_gpu() else function


class RunsKernelsOfTarget(TorchFunctionMode):
    """Mode in which code runs, without a capture, the kernels of the device that a step is traced for."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _kernel_of_target(func)(*args, **(kwargs or {}))


@cache
def _of_cuda() -> Mapping[object, Callable[..., object]]:
    """Function → a function for CPU tensors that keeps as many bytes as the first does on CUDA."""
    widened = {
        getattr(owner, name): {"dtype": torch.float32} if name in _TO_FLOAT32 else {}
        for owner in (torch, Tensor, functional)
        for name in (*_IN_FLOAT32, *_TO_FLOAT32)
        if hasattr(owner, name)
    } | {operator.pow: {}}
    return {
        **{function: _widened(function, settings) for function, settings in widened.items()},
        functional.dropout: _dropout,
        functional.cross_entropy: _cross_entropy,
    }


def _widened(function: Callable[..., object], settings: Mapping[str, object]) -> Callable[..., object]:
    """A function that autocast runs in float32 on CUDA only.

    ``settings`` are what autocast adds to the call; without any it passes float32 copies of the arguments.
    """

    def widened(*args: Any, **kwargs: Any) -> object:
        if torch.is_autocast_enabled("cpu"):
            if not settings:
                args, kwargs = tree_map_only(Tensor, _in_float32, (args, kwargs))
            elif isinstance(args[0], Tensor) and args[0].dtype in HALVES:
                kwargs = {**settings, **kwargs}
        return function(*args, **kwargs)

    return widened


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Dropout that keeps a mask of booleans; on a CPU it keeps numbers."""
    if not training or inplace or not 0 < p < 1:
        return functional.dropout(input, p, training, inplace)
    return torch.native_dropout(input, p, True)[0]


def _cross_entropy(input: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Cross entropy whose softmax stays in 16 bits under autocast; on a CPU it runs on a float32 copy."""
    plain = not (target.is_floating_point() or len(args) > _SMOOTHED or kwargs.get("label_smoothing"))
    if not (plain and torch.is_autocast_enabled("cpu")):
        return functional.cross_entropy(input, target, *args, **kwargs)
    kwargs.pop("label_smoothing", None)
    logarithms = functional.log_softmax(input, min(1, input.dim() - 1), dtype=input.dtype)
    return functional.nll_loss(logarithms, target, *args, **kwargs)


def _in_float32(x: Tensor) -> Tensor:
    return x.float() if x.dtype in HALVES else x


class AttentionCall(NamedTuple):
    """A call of attention on a GPU.

    Attributes:
        q: queries ``[batch, heads, L, E]``; likewise keys ``k`` and values ``v``, of S rows.
        mask: mask of the scores; None = no mask.
        causal: whether later keys are masked.
        grouped: whether several heads of queries share one head of keys.
        capability: compute capability of the GPU, (major, minor).
    """

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    causal: bool
    grouped: bool
    capability: tuple[int, int]

    @property
    def kernel(self) -> AttentionKernel:
        """The kernel that PyTorch picks, of those that ``torch.backends.cuda`` allows."""
        backends: Any = torch.backends.cuda
        rules = (
            (AttentionKernel.CUDNN, backends.cudnn_sdp_enabled(), self._suits_cudnn),
            (AttentionKernel.FLASH, backends.flash_sdp_enabled(), self._suits_flash),
            (AttentionKernel.EFFICIENT, backends.mem_efficient_sdp_enabled(), self._suits_efficient),
        )
        suited = (kernel for kernel, allowed, suits in rules if allowed and suits)
        return next(suited, AttentionKernel.MATH) if self.q.dim() == 4 else AttentionKernel.MATH

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
    """Run ``scaled_dot_product_attention`` as the device does that the step is traced for."""
    target = current_target()
    given = (query, key, value, attn_mask, dropout_p, is_causal)
    if target is None or target.capability is None:
        return scaled_dot_product_attention(*given, scale=scale, enable_gqa=enable_gqa)
    kernel = AttentionCall(query, key, value, attn_mask, is_causal, enable_gqa, target.capability).kernel
    if kernel is AttentionKernel.MATH:
        return _aten._scaled_dot_product_attention_math(*given, scale=scale, enable_gqa=enable_gqa)[0]
    width = query.shape[-1]
    scale = width**-0.5 if scale is None else scale
    if kernel is AttentionKernel.FLASH:
        padded = [pad(x, (0, -width % 8)) if width % 8 else x for x in (query, key, value)]
        y = _aten._scaled_dot_product_flash_attention(*padded, dropout_p, is_causal, False, scale=scale)[0]
        return y[..., :width]
    mask = _in_numbers(attn_mask, query)
    trains = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    if kernel is AttentionKernel.CUDNN:
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

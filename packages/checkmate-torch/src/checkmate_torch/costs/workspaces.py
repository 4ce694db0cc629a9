"""Memory of CUDA's libraries beside the tensors, where it was not measured: known figures, and guesses.

    cuBLAS         known: a workspace for each thread that multiplies matrices, kept for good
    cuBLASLt       known: likewise, for products with a bias; PyTorch 2.13 and later lend it cuBLAS's
    attention      known: backward adds up the gradient of the queries in float32, and a number for each row
    convolutions   a guess: cuDNN may copy operands and results into the layout of its kernels

Sources of the sizes: ``aten/src/ATen/cuda/CublasHandlePool.cpp`` for cuBLAS, and for attention
``aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp``. Other ops are charged nothing.
"""

from __future__ import annotations

import os
import re

import torch
from torch import Tensor
from torch.fx import Node

from checkmate_torch.ops.device import counts_as_cuda, current_target
from checkmate_torch.ops.sizes import largest
from checkmate_torch.ops.storages import rounded, shown_by

__all__ = ["guessed_workspace", "library_bytes"]

_aten = torch.ops.aten
_CUBLAS_BYTES = 8320 * 2**10
_CUBLAS_BYTES_HOPPER = 32 * 2**20
_CUBLASLT_BYTES = 2**20
_THREADS = 2
"""Threads that multiply matrices: the forward pass's, and autograd's for the device."""

_CONVOLUTIONS = (_aten.convolution, _aten.convolution_backward)
_ATTENTION_BACKWARD = (
    _aten._scaled_dot_product_flash_attention_backward,
    _aten._scaled_dot_product_cudnn_attention_backward,
    _aten._scaled_dot_product_efficient_attention_backward,
)


def library_bytes(device: torch.device) -> int:
    """Bytes on a device that libraries keep from their first use on; 0 on the CPU.

    ``CUBLAS_WORKSPACE_CONFIG`` sets the size for cuBLAS: ``:4096:8`` means 8 pieces of 4096 KiB.
    ``CUBLASLT_WORKSPACE_SIZE`` sets the size for cuBLASLt, in KiB.
    """
    if not counts_as_cuda(device):
        return 0
    cublas = _cublas_bytes(device)
    return _THREADS * (cublas + _cublaslt_bytes(cublas))


def _cublas_bytes(device: torch.device) -> int:
    pieces = re.findall(r":(\d+):(\d+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if pieces:
        return sum(int(size) * int(count) * 2**10 for size, count in pieces)
    target = current_target()
    capability = None if target is None else target.capability
    major, _ = capability or torch.cuda.get_device_capability(device)
    return _CUBLAS_BYTES_HOPPER if major in (9, 10) else _CUBLAS_BYTES


def _cublaslt_bytes(cublas: int) -> int:
    """Bytes of cuBLASLt's own workspace; 0 if it shares cuBLAS's, the default since PyTorch 2.13.

    Older releases keep a second workspace, by default no larger than cuBLAS's.
    """
    unified = os.environ.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE")
    if unified == "1" or (unified != "0" and hasattr(torch.backends.cuda, "cublaslt_workspace_size")):
        return 0
    size = os.environ.get("CUBLASLT_WORKSPACE_SIZE", "")
    own = int(size) * 2**10 if size.isdecimal() else _CUBLASLT_BYTES
    return own if unified == "0" else min(own, cublas)


def guessed_workspace(node: Node) -> int:
    """Bytes that an op on CUDA needs beyond its outputs; 0 for one on the CPU."""
    tensors = shown_by(*node.all_input_nodes, node)
    packet = getattr(node.target, "overloadpacket", None)
    if not any(counts_as_cuda(v.device) for v in tensors):
        return 0
    if packet in _CONVOLUTIONS:
        return sum(largest(v.untyped_storage().nbytes()) for v in tensors)  # all operands and results
    if packet in _ATTENTION_BACKWARD:
        return _of_attention_backward(node.args[1].meta["val"])  # type: ignore[union-attr]
    return 0


def _of_attention_backward(q: Tensor) -> int:
    """Workspace of an attention's backward op, from its queries ``[batch, heads, L, E]``."""
    batch, heads, rows, width = map(largest, q.shape)
    rows, width = -(-rows // 128) * 128, -(-width // 32) * 32  # the sizes of the kernels' blocks
    sums = 4 * batch * heads * rows
    gradient = 0 if q.dtype == torch.float32 else sums * width
    return rounded(sums, q.device) + rounded(gradient, q.device)

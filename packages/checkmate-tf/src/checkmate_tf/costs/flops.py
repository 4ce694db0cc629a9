"""Count the FLOPs of an op from shapes alone: 2mnk for a product of matrices [m, k] and [k, n], and so on.

    product       2 · elements made · length of the sum
    convolution   2 · elements made · elements of the filter of one output channel; the same for its gradients
    einsum        2 · product of the extents of all its labels

Any other op counts one for each element that it makes, so that no op that moves memory is free.
TensorFlow's own registry has no rule for einsum, for fused ops and for most gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

import tensorflow as tf

__all__ = ["flops_of", "number_format"]

_Rule = Callable[[tf.Operation], int]

_FORMATS = {tf.bfloat16: "bf16", tf.float16: "fp16"}


def flops_of(op: tf.Operation) -> float:
    """Floating-point operations of an op of a function's graph; a tensor of unknown shape counts 0.

    >>> product = lambda a, b: tf.linalg.matmul(a, b)
    >>> graph = tf.function(product).get_concrete_function(tf.TensorSpec([2, 3]), tf.TensorSpec([3, 5])).graph
    >>> [flops_of(op) for op in graph.get_operations() if op.type == "MatMul"]
    [60.0]
    """
    rule = _RULES.get(op.type)
    if rule is not None and all(t.shape.is_fully_defined() for t in (*op.inputs, *op.outputs)):
        return float(rule(op))
    return float(sum(t.shape.num_elements() or 0 for t in op.outputs))


def number_format(op: tf.Operation) -> str:
    """The format of the op's first floating-point tensor, as device tables name it."""
    floating = [t.dtype for t in (*op.inputs, *op.outputs) if t.dtype.is_floating]
    if not floating or floating[0] in _FORMATS:
        return _FORMATS[floating[0]] if floating else "fp32"
    allowed = tf.config.experimental.tensor_float_32_execution_enabled()
    return "tf32" if allowed and tf.config.list_physical_devices("GPU") else "fp32"


def _product(op: tf.Operation) -> int:
    """2 · |out| · k, where k is the dimension that both matrices share."""
    turned = any(op.node_def.attr[name].b for name in ("transpose_a", "adj_x"))
    return 2 * _elements(op.outputs[0]) * int(op.inputs[0].shape[-2 if turned else -1])


def _convolution(*, made: int | None, filters: int | None, depthwise: bool = False) -> _Rule:
    """2 · |output of forward, or its gradient| · |filter of one output channel|.

    A depthwise filter reads one channel, so only its window counts.

    Args:
        made: the input that is the gradient of the forward output; None = the op makes the output itself.
        filters: the input that is the filters; None = the op's own output is their gradient.
        depthwise: whether each filter reads one channel.
    """
    end = 2 if depthwise else -1
    return lambda op: 2 * _elements(_tensor(op, made)) * prod(_tensor(op, filters).shape[:end])


def _einsum(op: tf.Operation) -> int:
    """2 · product of the extents of all labels; without the factor 2 for a single operand."""
    terms = op.get_attr("equation").decode().partition("->")[0].split(",")
    extents: dict[str, int] = {}
    for term, tensor in zip(terms, op.inputs, strict=True):
        before, dots, after = term.replace(" ", "").partition("...")
        shape = list(tensor.shape)
        middle = shape[len(before) : len(shape) - len(after)]
        labels = [*before, *(f"...{k}" for k in range(-len(middle), 0) if dots), *after]
        for label, extent in zip(labels, shape, strict=True):
            extents[label] = max(extent, extents.get(label, 1))
    return min(len(terms), 2) * prod(extents.values())


def _elements(tensor: tf.Tensor) -> int:
    return int(tensor.shape.num_elements())


def _tensor(op: tf.Operation, k: int | None) -> tf.Tensor:
    """Input k of an op; None = its output."""
    return op.outputs[0] if k is None else op.inputs[k]


_PRODUCTS = ("MatMul", "_FusedMatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "_FusedBatchMatMulV2")
_FORWARD = ("Conv2D", "Conv3D", "_FusedConv2D", "_FusedConv3D")
_TO_INPUT = ("Conv2DBackpropInput", "Conv3DBackpropInputV2")
_TO_FILTER = ("Conv2DBackpropFilter", "Conv3DBackpropFilterV2")
_DEPTHWISE = ("DepthwiseConv2dNative", "_FusedDepthwiseConv2dNative")

_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(_PRODUCTS, _product),
    **dict.fromkeys(_FORWARD, _convolution(made=None, filters=1)),
    **dict.fromkeys(_TO_INPUT, _convolution(made=2, filters=1)),
    **dict.fromkeys(_TO_FILTER, _convolution(made=2, filters=None)),
    **dict.fromkeys(_DEPTHWISE, _convolution(made=None, filters=1, depthwise=True)),
    "DepthwiseConv2dNativeBackpropInput": _convolution(made=2, filters=1, depthwise=True),
    "DepthwiseConv2dNativeBackpropFilter": _convolution(made=2, filters=None, depthwise=True),
    "Einsum": _einsum,
}

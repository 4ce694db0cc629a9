"""Know which tensors of TensorFlow share one buffer, and which ops may write their output over an input.

    alias        y = f(x) makes no buffer: y is x under another shape, or x itself
    rows         x[2:5], x[3], tf.split(x, n), tf.unstack(x): slices of the first dimension, all others whole,
                 are in the buffer of x if their bytes are aligned; it lives as long as any of them
    take-over    y = f(x) is written into x's buffer, if x has the same size and no other op needs it
    lent         the workspace of f is kept for g, which reads the output of f and uses the workspace again

All are properties of TensorFlow's kernels, found by comparing predicted with measured peaks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import tensorflow as tf

from checkmate_tf.ops.device import device_of_this_machine
from checkmate_tf.private import resources

__all__ = [
    "ALIASES",
    "TAKE_OVER",
    "TAKE_OVER_SECOND",
    "aliased_input",
    "calls_functions",
    "is_compiled",
    "is_source",
    "lender",
    "nbytes",
    "output_bytes",
    "reserve_shape",
    "takes_over",
]

_Found = TypeVar("_Found")

_SOURCES = frozenset({"Placeholder", "PlaceholderWithDefault", "Const", "VarHandleOp"})
_ALIGNED = 64
"""Bytes to which TensorFlow aligns buffers."""
_STRING = 24
"""Bytes of a string's header, ``tstring``, which has room for 22 characters."""
# fmt: off
ALIASES = frozenset((
    "Identity", "IdentityN", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "PreventGradient",
    "CheckNumerics", "EnsureShape", "Bitcast", "ReadVariableOp",
))
"""Types of ops whose outputs share the buffers of their inputs."""
TAKE_OVER = frozenset((
    "Abs", "Acos", "Acosh", "Add", "AddN", "AddV2", "Asin", "Asinh", "Atan", "Atan2", "Atanh", "BiasAdd",
    "Ceil", "Cos", "Cosh", "Div", "DivNoNan", "Elu", "EluGrad", "Erf", "Erfc", "Erfinv", "Exp", "Expm1",
    "Floor", "FloorDiv", "FloorMod", "Inv", "InvGrad", "LeakyRelu", "LeakyReluGrad", "Lgamma", "Log",
    "Log1p", "LogSoftmax", "Maximum", "Minimum", "Mod", "Mul", "MulNoNan", "Neg", "Pow", "RealDiv",
    "Reciprocal", "ReciprocalGrad", "Relu", "Relu6", "Relu6Grad", "ReluGrad", "Rint", "Round", "Rsqrt",
    "RsqrtGrad", "Selu", "SeluGrad", "Sigmoid", "SigmoidGrad", "Sign", "Sin", "Sinh", "Softmax",
    "Softplus", "SoftplusGrad", "Softsign", "SoftsignGrad", "Sqrt", "SqrtGrad", "Square",
    "SquaredDifference", "Sub", "Tan", "Tanh", "TanhGrad", "TruncateDiv", "Xdivy", "Xlogy", "Xlog1py",
    "LogicalAnd", "LogicalOr", "LogicalNot", "ClipByValue", "SelectV2",
))
# fmt: on
"""Types of ops, mostly element-wise, that write their output over an input of the same size."""
TAKE_OVER_SECOND = frozenset({"SparseSoftmaxCrossEntropyWithLogits"})
"""Ops that write their second output over their first input. TensorFlow 2.16 does not for dense labels."""

_BATCH_NORMS = frozenset({"FusedBatchNormV3", "_FusedBatchNormEx"})
_LENT = {"MaxPoolGrad": ("MaxPool", 1)}
"""Type of an op → type of its lender, and number of the input that the lender makes. oneDNN's pooling keeps
the positions of the largest elements for its gradient."""


def nbytes(tensor: tf.Tensor) -> int:
    """Bytes of a tensor; 0 if its shape is not known, or it is a handle (resource, variant).

    For strings, only the headers count; longer texts are stored elsewhere.
    """
    if tensor.dtype in (tf.resource, tf.variant):
        return 0
    elements: int = tensor.shape.num_elements() or 0
    return elements * (_STRING if tensor.dtype == tf.string else int(tensor.dtype.size))


def _once(find: Callable[[tf.Operation], _Found]) -> Callable[[tf.Operation], _Found]:
    """A function that finds each op's answer once: TensorFlow takes long to list tensors and shapes."""
    known: WeakKeyDictionary[tf.Operation, _Found] = WeakKeyDictionary()

    @wraps(find)
    def found(op: tf.Operation) -> _Found:
        if op not in known:
            known[op] = find(op)
        return known[op]

    return found


@_once
def output_bytes(op: tf.Operation) -> tuple[int, ...]:
    """Bytes of each output of an op of a captured step, as by :func:`nbytes`."""
    return tuple(map(nbytes, op.outputs))


def is_source(op: tf.Operation) -> bool:
    """Whether an op's output is resident from the start: an argument, a captured tensor, a constant."""
    return op.type in _SOURCES


def aliased_input(op: tf.Operation, output: int) -> int | None:
    """The input whose buffer an output of an op shares; None = it has a buffer of its own.

    A read of a variable shares the variable's buffer.
    """
    if op.type in ALIASES:
        return output if op.type == "IdentityN" else 0
    return _rows_of(op)


@_once
def takes_over(op: tf.Operation) -> tuple[int, ...]:
    """The inputs that an op may write an output of the same size over, once no other op needs them."""
    if op.type in TAKE_OVER_SECOND:
        return (0,) if nbytes(op.inputs[0]) == nbytes(op.outputs[1]) else ()
    if op.type not in TAKE_OVER or len(op.outputs) != 1:
        return ()
    size, dtype = nbytes(op.outputs[0]), op.outputs[0].dtype
    return tuple(k for k, t in enumerate(op.inputs) if nbytes(t) == size and t.dtype == dtype)


def calls_functions(op: tf.Operation) -> bool:
    """Whether an op calls functions, as branches, loops and calls do."""
    return any(attr.HasField("func") or attr.list.func for attr in op.node_def.attr.values())


def is_compiled(op: tf.Operation) -> bool:
    """Whether an op is one kernel because XLA compiles the function that it calls, and writes no variable.

    Keras emits such an op for each grouped convolution on a CPU.
    """
    marked = "_XlaMustCompile" in op.node_def.attr and op.node_def.attr["_XlaMustCompile"].b
    return marked and not resources(op)[1]


def lender(op: tf.Operation) -> tf.Operation | None:
    """The op whose workspace is kept for this one, which then needs none of its own; None = no such op."""
    kind, k = _LENT.get(op.type, ("", 0))
    if not kind or op.inputs[k].op.type != kind:
        return None
    found = op.inputs[k].op
    own = {(t.op.name, t.value_index) for t in op.inputs}
    return found if all((t.op.name, t.value_index) in own for t in found.inputs) else None


def reserve_shape(op: tf.Operation) -> list[int] | None:
    """The shape of a batch norm's last output, which its gradient reads; None = not known, as on a GPU.

    TensorFlow leaves it open. oneDNN's kernel that includes a ReLU keeps a bit for each element there, in one
    element for each byte.
    """
    if op.type not in _BATCH_NORMS or not device_of_this_machine().startswith("CPU"):
        return None
    masks = op.type == "_FusedBatchNormEx" and op.get_attr("is_training")
    elements = op.inputs[0].shape.num_elements() if masks else 0
    return None if elements is None else [-(-elements // 8)]


def _rows_of(op: tf.Operation) -> int | None:
    """The input of which an op returns consecutive rows; None = its outputs have other buffers."""
    if op.type not in _ROWS:
        return None
    k, are_rows = _ROWS[op.type]
    x = op.inputs[k]
    if not x.shape.is_fully_defined() or x.shape.rank < 2 or not x.shape.num_elements():
        return None
    row = x.shape.num_elements() // x.shape[0] * x.dtype.size
    return k if row % _ALIGNED == 0 and are_rows(op, list(x.shape)) else None


def _along_first(position: int) -> Callable[[tf.Operation, Sequence[int]], bool]:
    """Whether an op splits the first dimension; the axis is an input of it."""

    def along(op: tf.Operation, shape: Sequence[int]) -> bool:
        axis = tf.get_static_value(op.inputs[position])
        return axis is not None and int(axis) in (0, -len(shape))

    return along


def _unstacks_first(op: tf.Operation, shape: Sequence[int]) -> bool:
    return op.get_attr("axis") in (0, -len(shape))


def _slices_first(op: tf.Operation, shape: Sequence[int]) -> bool:
    return list(op.outputs[0].shape)[1:] == shape[1:]


def _indexes_first(op: tf.Operation, shape: Sequence[int]) -> bool:
    """Whether x[…] has steps of 1, and takes all of the dimensions after the first."""
    steps = tf.get_static_value(op.inputs[3])
    if steps is None or any(step != 1 for step in steps):
        return False
    added, rest = op.get_attr("new_axis_mask"), op.get_attr("ellipsis_mask")
    taken = [i for i, _ in enumerate(steps) if not added >> i & 1]
    after = next((len(taken) - k - 1 for k, i in enumerate(taken) if rest >> i & 1), 0)
    dimensions = [*range(len(taken) - after), *range(len(shape) - after, len(shape))]
    where = zip(taken, dimensions, strict=True)
    return all(d == 0 or rest >> i & 1 or _takes_all(op, i, shape[d]) for i, d in where)


def _takes_all(op: tf.Operation, i: int, size: int) -> bool:
    """Whether the i-th index of x[…] is a slice of all ``size`` positions of its dimension."""
    begin, end = (tf.get_static_value(t) for t in list(op.inputs)[1:3])
    from_start = op.get_attr("begin_mask") >> i & 1 or (begin is not None and begin[i] == 0)
    return bool(from_start and (op.get_attr("end_mask") >> i & 1 or (end is not None and end[i] >= size)))


_ROWS: Mapping[str, tuple[int, Callable[[tf.Operation, Any], bool]]] = {
    "Split": (1, _along_first(0)),
    "SplitV": (0, _along_first(2)),
    "Unpack": (0, _unstacks_first),
    "Slice": (0, _slices_first),
    "StridedSlice": (0, _indexes_first),
}
"""Type of an op → the input that it takes apart, and whether the outputs are its rows."""

"""Rows of a tensor: TensorFlow makes no copy of consecutive rows whose bytes are aligned.

x[2:5], x[3], tf.split(x, n), tf.unstack(x):    slices of the first dimension, all others whole

Such an output is in the buffer of x, which lives as long as any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

__all__ = ["rows_of"]

_ALIGNED = 64
"""Bytes to which TensorFlow aligns buffers."""


def rows_of(op: tf.Operation) -> int | None:
    """The input of which the outputs of an op are rows; None = they are copies, or something else."""
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

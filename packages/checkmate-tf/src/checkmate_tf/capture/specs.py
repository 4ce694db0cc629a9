"""Read the shapes and dtypes that a plan is made for, from specs or from a sample.

sample or specs, nested  ↦  tf.TensorSpec, nested alike, each of known shape
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any

import numpy as np
import tensorflow as tf

from checkmate_tf.capture.function_capture import UnsupportedFunctionError

__all__ = ["spec_of", "specs_of"]

_EXAMPLE = 32
"""The batch size in the advice of error messages."""


def specs_of(name: str, given: Any) -> Any:
    """The specs of a sample: tensors, arrays, numbers or specs, nested in tuples, lists and dicts.

    Error messages call the sample ``name``.

    Raises:
        UnsupportedFunctionError: if a shape is not known, or a tensor is sparse or ragged.
        TypeError: if something in it is neither a tensor nor a spec, or it is a shape without a dtype.

    >>> specs_of("input_spec", {"ids": np.zeros([8, 3], np.int32)})
    {'ids': TensorSpec(shape=(8, 3), dtype=tf.int32, name=None)}
    >>> specs_of("input_spec", [tf.TensorSpec([None, 28, 28])])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    checkmate_tf.capture.function_capture.UnsupportedFunctionError: input_spec[0] has the shape (None, 28, ...
    """
    if (
        isinstance(given, tuple | list)
        and len(given) > 1
        and all(type(size) in (int, NoneType) for size in given)
    ):
        raise TypeError(
            f"{name} is {given!r}, a shape without a dtype: write tf.TensorSpec({list(given)}, tf.float32)"
        )
    leaves = tf.nest.flatten(given)
    places = list(_places(name, given))
    if len(places) != len(leaves):  # a kind of nest that _places does not enter
        places = [f"{name}, leaf {k}" for k, _ in enumerate(leaves)]
    return tf.nest.pack_sequence_as(given, list(map(spec_of, places, leaves)))


def _places(at: str, given: Any) -> Iterator[str]:
    """The place of each leaf, as Python would index it, in the order of ``tf.nest``."""
    if isinstance(given, Mapping):
        for key in sorted(given):
            yield from _places(f"{at}[{key!r}]", given[key])
    elif isinstance(given, tuple | list):
        for k, item in enumerate(given):
            yield from _places(f"{at}[{k}]", item)
    else:
        yield at


def spec_of(at: str, leaf: Any) -> tf.TensorSpec:
    """The spec of one tensor, array, number or spec at a place ``at``; raises as :func:`specs_of`."""
    if isinstance(leaf, tf.SparseTensor | tf.SparseTensorSpec | tf.RaggedTensor | tf.RaggedTensorSpec):
        way = "tf.sparse.to_dense(x)" if "Sparse" in type(leaf).__name__ else "x.to_tensor(shape=[...])"
        raise UnsupportedFunctionError(
            f"{at} is a {type(leaf).__name__}, whose bytes are unknown before the step runs: make it dense, "
            f"with {way}"
        )
    if isinstance(leaf, np.ndarray | np.generic | float | int):
        leaf = tf.convert_to_tensor(leaf)
    if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
        raise TypeError(f"{at} is {leaf!r}, must be a tensor, an array or a tf.TensorSpec")
    shape, dtype = tf.TensorShape(leaf.shape), tf.as_dtype(leaf.dtype)
    if not shape.is_fully_defined():
        raise UnsupportedFunctionError(
            f"{at} has the shape {shape}, and bytes can only be counted for known shapes: "
            f"{_advice(shape, dtype)}, or dataset.batch(n, drop_remainder=True)"
        )
    return tf.TensorSpec(shape, dtype)


def _advice(shape: tf.TensorShape, dtype: tf.DType) -> str:
    """The spec to write, with a batch of ``_EXAMPLE``."""
    if shape.rank is None:
        return f"write tf.TensorSpec([{_EXAMPLE}, ...], tf.{dtype.name})"
    known = [size if k or size is not None else _EXAMPLE for k, size in enumerate(shape.as_list())]
    text = ", ".join("..." if size is None else str(size) for size in known)
    return f"write tf.TensorSpec([{text}], tf.{dtype.name}) for batches of {known[0]}"

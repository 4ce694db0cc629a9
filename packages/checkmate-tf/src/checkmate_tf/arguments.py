"""The arguments of a call: nested, of tensors, which a plan knows by shape, and of values that are constants.

(args, kwargs) = structure(tensors, constants)        key = structure, shapes, dtypes, constants
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import tensorflow as tf

from checkmate_tf.capture import UnsupportedFunctionError

__all__ = ["Signature"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Signature:
    """What a function is called with, but for the tensors themselves, which nobody may keep.

    Attributes:
        structure: the positional and keyword arguments, nested; each leaf says whether it is a tensor.
        constants: all leaves, None in the place of tensors.
        specs: shapes and dtypes of the tensors.
        key: equal for calls that one plan serves.
    """

    structure: tuple[tuple[Any, ...], dict[str, Any]]
    constants: tuple[object, ...]
    specs: tuple[tf.TensorSpec, ...]
    key: Hashable

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Self, list[tf.Tensor]]:
        """The signature of a call, and its tensors; ``tf.TensorSpec`` may stand for some.

        Raises:
            UnsupportedFunctionError: if an argument is a sparse or ragged tensor, or its shape is not known.
        """
        leaves: list[Any] = [_tensor(x) for x in tf.nest.flatten((args, kwargs))]
        is_tensor = [isinstance(x, tf.Tensor | tf.TensorSpec) for x in leaves]
        for place, leaf in enumerate(leaves):
            _check(leaf, place)
        constants = tuple(None if t else x for x, t in zip(leaves, is_tensor, strict=True))
        specs = tuple(tf.TensorSpec(x.shape, x.dtype) for x, t in zip(leaves, is_tensor, strict=True) if t)
        structure = tf.nest.pack_sequence_as((args, kwargs), is_tensor)
        signature = cls(
            structure=structure,
            constants=constants,
            specs=specs,
            key=(repr(structure), specs, tuple(map(_identity, constants))),
        )
        return signature, [x for x in leaves if isinstance(x, tf.Tensor)]

    def apply(self, fn: Callable[..., Any], tensors: Sequence[tf.Tensor]) -> Any:
        """Call a function with these tensors."""
        given = iter(tensors)
        leaves = [
            next(given) if is_tensor else constant
            for is_tensor, constant in zip(tf.nest.flatten(self.structure), self.constants, strict=True)
        ]
        args, kwargs = tf.nest.pack_sequence_as(self.structure, leaves)
        return fn(*args, **kwargs)


def _tensor(leaf: object) -> object:
    return tf.convert_to_tensor(leaf) if isinstance(leaf, np.ndarray | np.generic) else leaf


def _check(leaf: object, place: int) -> None:
    if isinstance(leaf, tf.SparseTensor | tf.RaggedTensor | tf.SparseTensorSpec | tf.RaggedTensorSpec):
        raise UnsupportedFunctionError(
            f"argument {place} is a {type(leaf).__name__}, whose bytes are known only when it is there: make "
            "it dense, with tf.sparse.to_dense(x) or x.to_tensor(shape=...)"
        )
    if isinstance(leaf, tf.Tensor | tf.TensorSpec) and not leaf.shape.is_fully_defined():
        raise UnsupportedFunctionError(
            f"argument {place} has the shape {leaf.shape}, and bytes can only be counted for known shapes. "
            "Give the batch a size: tf.TensorSpec([32, ...]) where it says None, or "
            "dataset.batch(n, drop_remainder=True)"
        )


def _identity(constant: object) -> Hashable:
    """What tells one constant from another: its value, if it can be hashed; else that it is this object."""
    try:
        hash(constant)
    except TypeError:
        return id(constant)
    return (type(constant), constant)

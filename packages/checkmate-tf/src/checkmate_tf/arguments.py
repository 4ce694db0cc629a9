"""The arguments of a call: nested, of tensors, which a plan knows by shape, and of values that are constants.

(args, kwargs) = structure(tensors, constants)        key = structure, shapes, dtypes, constants
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from checkmate_tf.capture import UnsupportedFunctionError

__all__ = ["Arguments"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arguments:
    """What a function is called with.

    Attributes:
        structure: the positional and keyword arguments.
        constants: all leaves, None in the place of tensors.
        is_tensor: which leaves are tensors.
        tensors: the tensors; fewer than ``specs`` if a ``tf.TensorSpec`` stood for one.
        specs: shapes and dtypes of the tensors.
        key: equal for calls that one plan serves.
    """

    structure: tuple[tuple[Any, ...], dict[str, Any]]
    constants: tuple[object, ...]
    is_tensor: tuple[bool, ...]
    tensors: tuple[tf.Tensor, ...]
    specs: tuple[tf.TensorSpec, ...]
    key: Hashable

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Read arguments.

        Raises:
            UnsupportedFunctionError: if one is a sparse or ragged tensor, or a shape is not known.
        """
        structure = (args, kwargs)
        leaves = [
            tf.convert_to_tensor(x) if isinstance(x, np.ndarray | np.generic) else x
            for x in tf.nest.flatten(structure)
        ]
        is_tensor = tuple(isinstance(x, tf.Tensor | tf.TensorSpec) for x in leaves)
        for place, leaf in enumerate(leaves):
            _check(leaf, f"argument {place}")
        constants = tuple(None if tensor else leaf for leaf, tensor in zip(leaves, is_tensor, strict=True))
        specs = tuple(
            tf.TensorSpec(x.shape, x.dtype) for x, tensor in zip(leaves, is_tensor, strict=True) if tensor
        )
        nesting = repr(tf.nest.pack_sequence_as(structure, is_tensor))
        return cls(
            structure=structure,
            constants=constants,
            is_tensor=is_tensor,
            tensors=tuple(x for x in leaves if isinstance(x, tf.Tensor)),
            specs=specs,
            key=(nesting, specs, tuple(map(_identity, constants))),
        )

    def apply(self, fn: Callable[..., Any], tensors: Sequence[tf.Tensor]) -> Any:
        """Call a function with other tensors in the place of these."""
        given = iter(tensors)
        leaves = [
            next(given) if tensor else x for x, tensor in zip(self.constants, self.is_tensor, strict=True)
        ]
        args, kwargs = tf.nest.pack_sequence_as(self.structure, leaves)
        return fn(*args, **kwargs)


def _check(leaf: object, where: str) -> None:
    if isinstance(leaf, tf.SparseTensor | tf.RaggedTensor | tf.SparseTensorSpec | tf.RaggedTensorSpec):
        raise UnsupportedFunctionError(
            f"{where} is a {type(leaf).__name__}, whose bytes are known only when it is there: make it "
            "dense, with tf.sparse.to_dense(x) or x.to_tensor(shape=...)"
        )
    if isinstance(leaf, tf.Tensor | tf.TensorSpec) and not leaf.shape.is_fully_defined():
        raise UnsupportedFunctionError(
            f"{where} has the shape {leaf.shape}, and bytes can only be counted for known shapes. Give the "
            "batch a size: tf.TensorSpec([32, ...]) where it says None, or "
            "dataset.batch(n, drop_remainder=True)"
        )


def _identity(constant: object) -> Hashable:
    """What tells one constant from another: its value, if it can be hashed; else that it is this object."""
    try:
        hash(constant)
    except TypeError:
        return id(constant)
    return (type(constant), constant)

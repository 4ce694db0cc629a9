"""Split the arguments of a call into nested tensors, known to a plan by shape and dtype, and constants.

(args, kwargs) = structure(tensors, constants)        key = structure, shapes, dtypes, constants
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import tensorflow as tf

from checkmate_tf.capture.specs import spec_of

__all__ = ["Signature"]

_TENSORS = (
    *(tf.Tensor, tf.SparseTensor, tf.RaggedTensor),
    *(tf.TensorSpec, tf.SparseTensorSpec, tf.RaggedTensorSpec),
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Signature:
    """The arguments of a call without the tensors themselves, which must not be kept alive.

    Attributes:
        structure: the positional and keyword arguments, nested; each leaf is True if it is a tensor.
        constants: all leaves, None in the place of tensors.
        specs: shapes and dtypes of the tensors.
        key: equal for calls that share a plan.
    """

    structure: tuple[tuple[Any, ...], dict[str, Any]]
    constants: tuple[object, ...]
    specs: tuple[tf.TensorSpec, ...]
    key: tuple[str, tuple[tf.TensorSpec, ...], tuple[Hashable, ...]]

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Self, list[tf.Tensor]]:
        """The signature of a call, and its tensors; a ``tf.TensorSpec`` may replace a tensor.

        Raises:
            UnsupportedFunctionError: if an argument is a sparse or ragged tensor, or its shape is not known.
        """
        leaves: list[Any] = [_tensor(x) for x in tf.nest.flatten((args, kwargs))]
        is_tensor = [isinstance(x, _TENSORS) for x in leaves]
        constants = tuple(None if t else x for x, t in zip(leaves, is_tensor, strict=True))
        specs = tuple(spec_of(f"argument {k}", x) for k, x in enumerate(leaves) if is_tensor[k])
        structure = tf.nest.pack_sequence_as((args, kwargs), is_tensor)
        signature = cls(
            structure=structure,
            constants=constants,
            specs=specs,
            key=(repr(structure), specs, tuple(map(_identity, constants))),
        )
        return signature, [x for x in leaves if isinstance(x, tf.Tensor)]

    def __str__(self) -> str:
        """The nested arguments, with specs in place of tensors."""
        args, kwargs = self.apply(lambda *args, **kwargs: (args, kwargs), self.specs)
        return ", ".join([*map(str, args), *(f"{name}={x}" for name, x in kwargs.items())])

    def other_constants(self, other: Signature) -> list[object]:
        """The constants that differ from those of another call; empty if tensors or nesting differ, too."""
        if self.key[:2] != other.key[:2]:
            return []
        pairs = zip(self.constants, self.key[2], other.key[2], strict=True)
        return [constant for constant, our, their in pairs if our != their]

    def apply(self, fn: Callable[..., Any], tensors: Sequence[Any]) -> Any:
        """Call a function with these tensors and the constants."""
        given = iter(tensors)
        leaves = [
            next(given) if is_tensor else constant
            for is_tensor, constant in zip(tf.nest.flatten(self.structure), self.constants, strict=True)
        ]
        args, kwargs = tf.nest.pack_sequence_as(self.structure, leaves)
        return fn(*args, **kwargs)


def _tensor(leaf: object) -> object:
    return tf.convert_to_tensor(leaf) if isinstance(leaf, np.ndarray | np.generic) else leaf


def _identity(constant: object) -> Hashable:
    """The value that identifies a constant: its own, if it can be hashed; else its ``id``."""
    try:
        hash(constant)
    except TypeError:
        return id(constant)
    return (type(constant), constant)

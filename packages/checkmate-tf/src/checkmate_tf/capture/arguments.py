"""Split the arguments of a call into nested tensors, known to a plan by shape and dtype, and constants.

(args, kwargs) = structure(tensors, constants)        key = structure, shapes, dtypes, constants
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import tensorflow as tf

from checkmate_tf.capture.specs import spec_of

__all__ = ["Range", "Signature"]

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

    @property
    def kind(self) -> Hashable:
        """Equal for calls that differ at most in sizes."""
        structure, specs, constants = self.key
        return structure, tuple((spec.shape.rank, spec.dtype) for spec in specs), constants

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of all tensors, one after the other."""
        return tuple(size for spec in self.specs for size in spec.shape)

    def with_sizes(self, sizes: Sequence[int | None]) -> tuple[tf.TensorSpec, ...]:
        """The specs with other sizes; None = any."""
        rest = iter(sizes)
        return tuple(tf.TensorSpec([next(rest) for _ in spec.shape], spec.dtype) for spec in self.specs)

    def apply(self, fn: Callable[..., Any], tensors: Sequence[Any]) -> Any:
        """Call a function with these tensors and the constants."""
        given = iter(tensors)
        leaves = [
            next(given) if is_tensor else constant
            for is_tensor, constant in zip(tf.nest.flatten(self.structure), self.constants, strict=True)
        ]
        args, kwargs = tf.nest.pack_sequence_as(self.structure, leaves)
        return fn(*args, **kwargs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Sizes of the tensors of a call that one plan is made for.

    Attributes:
        largest: the largest sizes.
        open: the numbers of the sizes that may be smaller.
    """

    largest: tuple[int, ...]
    open: frozenset[int]

    @classmethod
    def of(cls, seen: Collection[tuple[int, ...]]) -> Self | None:
        """The range of all sizes seen; None unless one of them is the largest in each dimension."""
        columns = list(zip(*seen, strict=True))
        largest = tuple(map(max, columns))
        differ = frozenset(k for k, column in enumerate(columns) if len(set(column)) > 1)
        return cls(largest=largest, open=differ) if largest in seen else None

    def covers(self, sizes: Sequence[int]) -> bool:
        """Whether it contains these sizes."""
        pairs = enumerate(zip(sizes, self.largest, strict=True))
        return all(size == most or (k in self.open and size < most) for k, (size, most) in pairs)

    @property
    def half(self) -> Range:
        """The range up to half of the open sizes."""
        largest = (size // 2 if k in self.open else size for k, size in enumerate(self.largest))
        return Range(largest=tuple(largest), open=self.open)

    @property
    def sizes(self) -> list[int | None]:
        """The sizes, None where they are open."""
        return [None if k in self.open else size for k, size in enumerate(self.largest)]


def _tensor(leaf: object) -> object:
    return tf.convert_to_tensor(leaf) if isinstance(leaf, np.ndarray | np.generic) else leaf


def _identity(constant: object) -> Hashable:
    """The value that identifies a constant: its own, if it can be hashed; else its ``id``."""
    try:
        hash(constant)
    except TypeError:
        return id(constant)
    return (type(constant), constant)

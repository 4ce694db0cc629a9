"""Rows of indices in two arrays, as sparse matrices have them: which tensors each op reads, and the like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["CSR", "frozen"]

_Number = TypeVar("_Number", np.int64, np.float64)


class CSR(NamedTuple):
    """Rows of indices, compressed: row i is ``indices[indptr[i]:indptr[i + 1]]``; read-only int64 arrays."""

    indptr: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int64]

    def row(self, i: int) -> npt.NDArray[np.int64]:
        """The indices of row ``i``, as a view."""
        return self.indices[self.indptr[i] : self.indptr[i + 1]]

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """The row of each of ``indices``, in the same shape."""
        return np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Self:
        """Compress a list of rows."""
        indptr = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum([len(row) for row in rows], out=indptr[1:])
        indices = np.fromiter((i for row in rows for i in row), dtype=np.int64, count=int(indptr[-1]))
        return cls(frozen(indptr), frozen(indices))


def frozen(array: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
    """A copy in immutable memory, which even setting the flag can't make writeable."""
    return np.frombuffer(array.tobytes(), dtype=array.dtype)

r"""A mixed-integer linear program, and the outcome of an engine that solves it.

    min c·x    subject to    lower ≤ A x ≤ upper,    least ≤ x ≤ most,    x_j whole where asked

A :class:`Backend` is one engine (:mod:`checkmate_solvers.engines` has two), and knows nothing of graphs. A
:class:`Draft` collects the columns and rows of a program, many at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

__all__ = ["Backend", "Draft", "Ids", "Milp", "Outcome"]

Ids = npt.NDArray[np.int64]
"""Numbers of columns or rows, in any shape; −1 = there is none."""
_Floats = npt.NDArray[np.float64]
_Values = _Floats | float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Milp:
    """A mixed-integer linear program, in the form at the top of the module.

    Every column is bounded. No entry of the objective exceeds 1, and no other entry exceeds 2^18, so that an
    engine's tolerances mean something.
    """

    objective: _Floats
    matrix: csr_array
    lower: _Floats
    upper: _Floats
    least: _Floats
    most: _Floats
    integral: npt.NDArray[np.bool_]

    def relaxed(self) -> Self:
        """The linear relaxation: no column has to be whole."""
        return replace(self, integral=np.zeros_like(self.integral))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """What an engine found and proved.

    Attributes:
        values: of the columns, within the engine's tolerances; None if it found none.
        bound: lower bound on the objective of any solution, the engine's tolerances taken off; −∞ if nothing
            is known, ∞ if there is no solution.
        finished: whether the engine came to its end: the requested gap is closed, or there is no solution.
    """

    values: _Floats | None
    bound: float
    finished: bool


class Backend(Protocol):
    """One engine: a value whose fields are its settings, as a solver is."""

    def solve(self, program: Milp, *, time_limit: float, gap: float) -> Outcome:
        """Solve the program, as a linear one if no column has to be whole.

        Stop after ``time_limit`` seconds, or when objective and bound are within the relative ``gap``.
        """


class Draft:
    """A program that is being written: columns and rows are added in blocks of any shape."""

    def __init__(self) -> None:
        self._columns: list[list[_Floats]] = []
        self._bounds: list[list[_Floats]] = []
        self._entries: list[tuple[Ids, Ids, _Floats]] = []
        self.n_columns = self.n_rows = 0

    def columns(
        self,
        where: npt.NDArray[np.bool_],
        *,
        least: _Values = 0.0,
        most: _Values = 1.0,
        cost: _Values = 0.0,
        integral: bool = False,
    ) -> Ids:
        """One new column for each True in ``where``; bounds and costs may be arrays of the same shape."""
        ids = np.where(where, self.n_columns + np.cumsum(where).reshape(where.shape) - 1, -1)
        self.n_columns += int(np.count_nonzero(where))
        self._columns.append([_spread(x, where) for x in (least, most, cost, integral)])
        return ids

    def rows(
        self,
        *terms: tuple[Ids, _Values],
        lower: _Values = -np.inf,
        upper: _Values = np.inf,
        where: npt.NDArray[np.bool_] | None = None,
    ) -> Ids:
        """One new row for each position of the first term, or only where ``where`` says so.

        A term is (columns, coefficients); where the column is −1 it is left out. All have the same shape.
        """
        where = np.ones(terms[0][0].shape, dtype=np.bool_) if where is None else where
        ids = np.where(where, self.n_rows + np.cumsum(where).reshape(where.shape) - 1, -1)
        self.n_rows += int(np.count_nonzero(where))
        self._bounds.append([_spread(x, where) for x in (lower, upper)])
        for columns, coefficients in terms:
            self.extend(ids, columns, coefficients)
        return ids

    def extend(self, rows: Ids, columns: Ids, coefficients: _Values) -> None:
        """Add terms to existing rows, position by position; terms whose row or column is −1 are left out."""
        rows, columns, values = np.broadcast_arrays(rows, columns, np.asarray(coefficients, dtype=np.float64))
        present = (rows >= 0) & (columns >= 0) & (values != 0)
        self._entries.append((rows[present], columns[present], values[present]))

    def program(self) -> Milp:
        """The finished program."""
        least, most, cost, integral = (np.concatenate(parts) for parts in zip(*self._columns, strict=True))
        lower, upper = (np.concatenate(parts) for parts in zip(*self._bounds, strict=True))
        rows, columns, values = (np.concatenate(parts) for parts in zip(*self._entries, strict=True))
        matrix = csr_array((values, (rows, columns)), shape=(self.n_rows, self.n_columns))
        whole = integral.astype(np.bool_)
        return Milp(
            objective=cost, matrix=matrix, lower=lower, upper=upper, least=least, most=most, integral=whole
        )


def _spread(values: _Values, where: npt.NDArray[np.bool_]) -> _Floats:
    wide: _Floats = np.broadcast_to(np.asarray(values, dtype=np.float64), where.shape)
    return wide[where]

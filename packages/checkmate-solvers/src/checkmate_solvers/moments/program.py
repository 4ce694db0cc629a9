r"""Several moments of a schedule as one program: the tensors resident at each, and the runs in between.

For moments t_1 < … < t_K, each with the variables of :mod:`checkmate_solvers.moments.moment`, and for all
i < j ≤ K + 1, where t_{K+1} is the end, r_{ij,o} = 1 if op o ran before t_i and runs again before t_j. It
runs there for the first time if a_{i,o} = 1 and a_{j,o} = 0. So after t_i, and before t_j, there is

    avail_{ij,T} = x_{i,T} + r_{ij,p(T)} + a_{i,p(T)} − a_{j,p(T)}

A tensor must be available if it is read by an op that runs there, again or first, or resident at t_j:

    avail_{ij,T} ≥ r_{ij,o} + a_{i,o} − a_{j,o}     if o reads T
    avail_{ij,T} ≥ x_{j,T}

where a_{K+1,o} = 0; a_{k,o} = 1 for t_k and all ops that certainly run after it. Graph outputs must be
available in the end. What runs again between t_i and t_j does so before or after each t_m between them:

    r_{ij,o} ≤ r_{im,o} + r_{mj,o}

The objective Σ c_o r_{k k+1,o} is a lower bound on the cost of all recomputation, and so is its minimum over
fractions. Rows of t_i and t_j are there even if moments lie between them, so a further moment never lowers
either minimum: without these rows, half a run before t_m and half a run after it would pass for
one. For fixed binary x and a, r needs no integrality: the rows of neighbours, j = i + 1, are differences,
hence totally unimodular, and the least r that meets them meets the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from checkmate_solvers.milp import Draft, Ids
from checkmate_solvers.moments.moment import Mask, Moment

__all__ = ["Moments"]

_MOST_UNITS = 2**18
"""The most units of memory in which the room at a moment is counted."""


class Moments:
    """The program that decides some moments together.

    Attributes:
        moments: the moments in base order; if schedules may reorder, each is an ancestor of the next.
        x: columns of x, shape ``[n_moments, n_tensors]``; −1 = there is none.
        r: columns of r for each (i, j), counted from 0, shape ``[n_ops]``.
        a: columns of a, shape ``[n_moments + 1, n_ops]``.
        program: the program; costs in ``unit``.
        unit: cost unit of the objective: the cost of the most expensive op that may run again.
    """

    def __init__(self, moments: Sequence[Moment]) -> None:
        self.moments, self.graph = tuple(moments), moments[0].graph
        graph, draft = self.graph, Draft()
        recomputable = np.array([op.recomputable for op in graph.ops], dtype=np.bool_)
        again = np.array([(m.before | m.unsure) & recomputable for m in moments])
        self.unit = float(graph.costs[again.any(axis=0)].max(initial=0.0)) or 1.0
        pinned = np.array([m.pinned for m in moments])
        room = np.array([m.room - m.pinned_size for m in moments])[:, None]
        fits = (pinned | (graph.sizes <= room)).astype(np.float64)
        self.x = draft.columns(np.array([m.made for m in moments]), least=pinned, most=fits, integral=True)
        never = np.zeros(graph.n_ops, dtype=np.bool_)
        certain = np.array([*(m.after | (np.arange(graph.n_ops) == m.at) for m in moments), never])
        unsure = np.array([*(m.unsure for m in moments), never])
        self.a = draft.columns(certain | unsure, least=certain, integral=True)
        self._draft, self._reader = draft, graph.reads.rows
        self.r: dict[tuple[int, int], Ids] = {}
        for k in range(len(moments)):
            self._room(k)
            self._order(k)
        for length in range(1, len(moments) + 1):
            for i in range(len(moments) - length + 1):
                cost = graph.costs / self.unit if length == 1 else 0.0
                self.r[i, i + length] = draft.columns(again[i], cost=cost)
                self._between(i, i + length)
        self.program = draft.program()

    def kept(self, values: npt.NDArray[np.float64]) -> dict[int, Mask]:
        """A solution's x as masks; tensors that a moment does not decide, or made after it, are kept."""
        chosen = np.append(values > 0.5, True)[self.x]
        late = np.append(values > 0.5, False)[self.a]
        chosen |= np.append(late, np.zeros((len(late), 1), dtype=np.bool_), axis=1)[:-1, self.graph.producer]
        return {moment.at: chosen[k] for k, moment in enumerate(self.moments)}

    def again(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """A solution's r between neighbouring moments, shape ``[n_moments, n_ops]``."""
        columns = np.array([self.r[k, k + 1] for k in range(len(self.moments))])
        again: npt.NDArray[np.float64] = np.append(values, 0.0)[columns]
        return again

    def _room(self, k: int) -> None:
        """Add the row Σ |T| x_T ≤ room, in whole numbers up to 2^18.

        An engine compares with tolerances, of 1e-6 and less: a row that is full to the byte must not depend
        on them. Sizes and room are divided by their greatest common divisor, then by the factor that is still
        needed, and rounded down: as x is binary, a choice that fits still fits.
        """
        moment, sizes = self.moments[k], self.graph.sizes
        there = (self.x[k] >= 0) & (sizes > 0) & (sizes <= moment.room)
        divisor = math.gcd(*sizes[there].tolist()) or 1
        divisor *= max(1, -(-(moment.room // divisor) // _MOST_UNITS))
        row = self._draft.rows((np.array([-1]), 1.0), upper=float(moment.room // divisor))
        self._draft.extend(row, np.where(there, self.x[k], -1), (sizes // divisor).astype(np.float64))

    def _order(self, k: int) -> None:
        """Add rows: an op that has not run makes nothing, its readers have not run, and no run is undone."""
        draft, late, following = self._draft, self.a[k], self.a[k + 1]
        made_late = np.append(late, -1)[self.graph.producer]
        draft.rows((self.x[k], 1.0), (made_late, 1.0), upper=1.0, where=(made_late >= 0) & (self.x[k] >= 0))
        source, reader = made_late[self.graph.reads.indices], late[self._reader]
        draft.rows((reader, 1.0), (source, -1.0), lower=0.0, where=(reader >= 0) & (source >= 0))
        draft.rows((late, 1.0), (following, -1.0), lower=0.0, where=(late >= 0) & (following >= 0))

    def _between(self, i: int, j: int) -> None:
        """Add rows for what runs after t_i and before t_j, and for what is resident at t_j."""
        graph, draft, moments, r = self.graph, self._draft, self.moments, self.r[i, j]

        def available(tensors: Ids) -> list[tuple[Ids, float]]:
            maker = graph.producer[tensors]
            first = (self.a[i, maker], 1.0), (self.a[j, maker], -1.0)
            return [(self.x[i, tensors], 1.0), (r[maker], 1.0), *first]

        inner = graph.producer[graph.reads.indices] >= 0
        reader, read = self._reader[inner], graph.reads.indices[inner]
        again, late, later = r[reader], self.a[i, reader], self.a[j, reader]
        runs = (again, -1.0), (late, -1.0), (later, 1.0)
        draft.rows(*available(read), *runs, lower=0.0, where=(again >= 0) | (late >= 0))
        if j == len(moments):
            asked = np.array([t for t in graph.outputs if graph.producer[t] >= 0], dtype=np.int64)
            draft.rows(*available(asked), lower=1.0)
        else:
            held = np.flatnonzero(self.x[j] >= 0)
            draft.rows(*available(held), (self.x[j, held], -1.0), lower=0.0)
        for m in range(i + 1, j):
            draft.rows((r, 1.0), (self.r[i, m], -1.0), (self.r[m, j], -1.0), upper=0.0, where=r >= 0)

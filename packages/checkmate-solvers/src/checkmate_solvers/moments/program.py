r"""Several moments of a schedule as one program: the tensors resident at each, and the runs in between.

For moments t_1 < … < t_K, each with the variables and rows of :mod:`checkmate_solvers.moments.moment`,
r_{k,o} = 1 if op o runs again after t_k and before t_{k+1}; it runs for the first time there if a_{k,o} = 1
and a_{k+1,o} = 0. So after t_k, and before t_{k+1}, there is

    avail_{k,T} = x_{k,T} + r_{k,p(T)} + a_{k,p(T)} − a_{k+1,p(T)}

A tensor must be available if it is read by an op that runs there, first or again, or resident at t_{k+1}:

    avail_{k,T} ≥ r_{k,o},   avail_{k,T} ≥ a_{k,o} − a_{k+1,o}     if o reads T
    avail_{k,T} ≥ x_{k+1,T}

where a_{K+1,o} = 0; a_{k,o} = 1 for t_k and all ops that certainly run after it. Graph outputs must be
available in the end. The objective Σ c_o r_{k,o} is a lower bound on the cost of all recomputation, and so is
its minimum over fractions: stronger with every moment, for 2n variables each instead of Checkmate's n². For
fixed binary x and a the rows in r are differences, hence totally unimodular: r needs no integrality.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from checkmate_solvers.engines.program import Draft, Ids
from checkmate_solvers.moments.moment import Mask, Moment

__all__ = ["Moments"]

_MOST_UNITS = 2**18
"""The most units of memory in which the room at a moment is counted."""


class Moments:
    """The program of some moments.

    Attributes:
        moments: in the order in which they come; if schedules may reorder, each is an ancestor of the next.
        x: columns of x, shape ``[n_moments, n_tensors]``; −1 = there is none.
        r: columns of r, shape ``[n_moments, n_ops]``.
        a: columns of a, shape ``[n_moments + 1, n_ops]``.
        program: the program; costs in ``unit``.
        unit: cost unit of the objective, that of the most expensive op that may run again.
    """

    def __init__(self, moments: Sequence[Moment]) -> None:
        """Draft the program."""
        self.moments, self.graph = tuple(moments), moments[0].graph
        graph, draft = self.graph, Draft()
        recomputable = np.array([op.recomputable for op in graph.ops], dtype=np.bool_)
        again = np.array([(m.before | m.unsure) & recomputable for m in moments])
        self.unit = float(graph.costs[again.any(axis=0)].max(initial=0.0)) or 1.0
        pinned = np.array([m.pinned for m in moments])
        room = np.array([m.room - m.pinned_size for m in moments])[:, None]
        fits = (pinned | (graph.sizes <= room)).astype(np.float64)
        self.x = draft.columns(np.array([m.made for m in moments]), least=pinned, most=fits, integral=True)
        self.r = draft.columns(again, cost=graph.costs / self.unit)
        never = np.zeros(graph.n_ops, dtype=np.bool_)
        certain = np.array([*(m.after | (np.arange(graph.n_ops) == m.at) for m in moments), never])
        unsure = np.array([*(m.unsure for m in moments), never])
        self.a = draft.columns(certain | unsure, least=certain, integral=True)
        self._draft, self._reader = draft, np.repeat(np.arange(graph.n_ops), np.diff(graph.reads.indptr))
        for k in range(len(moments)):
            self._room(k)
            self._order(k)
            self._runs(k)
            self._carried(k)
        self.program = draft.program()

    def kept(self, values: npt.NDArray[np.float64]) -> dict[int, Mask]:
        """A solution's x as masks; tensors that a moment does not decide, or made after it, are kept."""
        chosen = np.append(values > 0.5, True)[self.x]
        late = np.append(values > 0.5, False)[self.a]
        chosen |= np.append(late, np.zeros((len(late), 1), dtype=np.bool_), axis=1)[:-1, self.graph.producer]
        return {moment.at: chosen[k] for k, moment in enumerate(self.moments)}

    def _room(self, k: int) -> None:
        """Σ |T| x_T ≤ room, in whole numbers up to 2^18.

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
        """An op that has not run makes nothing, and its readers have not run; one that ran stays so."""
        draft, late, following = self._draft, self.a[k], self.a[k + 1]
        made_late = np.append(late, -1)[self.graph.producer]
        draft.rows((self.x[k], 1.0), (made_late, 1.0), upper=1.0, where=(made_late >= 0) & (self.x[k] >= 0))
        source, reader = made_late[self.graph.reads.indices], late[self._reader]
        draft.rows((reader, 1.0), (source, -1.0), lower=0.0, where=(reader >= 0) & (source >= 0))
        draft.rows((late, 1.0), (following, -1.0), lower=0.0, where=(late >= 0) & (following >= 0))

    def _available(self, k: int, tensors: Ids) -> list[tuple[Ids, float]]:
        """The terms of avail_k for these tensors, which ops make."""
        maker = self.graph.producer[tensors]
        first = (self.a[k, maker], 1.0), (self.a[k + 1, maker], -1.0)
        return [(self.x[k, tensors], 1.0), (self.r[k, maker], 1.0), *first]

    def _runs(self, k: int) -> None:
        """Rows for the reads of ops that run after t_k and before t_{k+1}."""
        inner = self.graph.producer[self.graph.reads.indices] >= 0
        reader, available = self._reader[inner], self._available(k, self.graph.reads.indices[inner])
        again, late, later = self.r[k, reader], self.a[k, reader], self.a[k + 1, reader]
        self._draft.rows(*available, (again, -1.0), lower=0.0, where=again >= 0)
        self._draft.rows(*available, (late, -1.0), (later, 1.0), lower=0.0, where=late >= 0)

    def _carried(self, k: int) -> None:
        """Rows for tensors that are resident at the next moment, or graph outputs at the end."""
        if k + 1 == len(self.moments):
            asked = np.array([t for t in self.graph.outputs if self.graph.producer[t] >= 0], dtype=np.int64)
            self._draft.rows(*self._available(k, asked), lower=1.0)
        else:
            held = np.flatnonzero(self.x[k + 1] >= 0)
            self._draft.rows(*self._available(k, held), (self.x[k + 1, held], -1.0), lower=0.0)

r"""The program of the Checkmate paper, for ops that make several tensors and need workspace.

Beside R and S of :mod:`checkmate_solvers.literature.stages.shape`: F[t, u, k] says that in stage t tensor u
is freed right after op k, which makes or reads it; V[t, k] are the bytes held in stage t just before the turn
of op k. In a stage ops run in base order, each at most once.

    min Σ c_k R[t, k]
    R[t, j] ≤ R[t, p(u)] + S[t, u]                         if j reads u                          (1b)
    S[t + 1, u] ≤ R[t, p(u)] + S[t, u]                                                           (1c)
    V[t, 0] = Σ_u |u| S[t, u]                                                                    (2)
    V[t, k + 1] = V[t, k] + |outputs of k| R[t, k] − Σ_u |u| F[t, u, k]                          (3)
    V[t, k] + (|outputs of k| + workspace of k) R[t, k] ≤ room                                   (1f)
    F[t, u, k] = 1  ⟺  hazards = (1 − R[t, k]) + S[t + 1, u] + Σ_{j > k reads u} R[t, j] = 0     (5, 7)

The last as in the paper, with κ the most hazards: 1 − F ≤ hazards ≤ κ (1 − F). *Strengthened*, it is

    F[t, u, k] ≤ R[t, k],   Σ_k F[t, u, k] + S[t + 1, u] ≤ 1,   Σ_{k < j} F[t, u, k] + R[t, j] ≤ 1
    Σ_k F[t, u, k] + S[t + 1, u] ≤ R[t, p(u)] + S[t, u]    only a resident tensor can be freed or kept

which leaves the same schedules, cuts off fractional points, and needs no whole F. Numbers of equations: Jain
et al., "Checkmate", MLSys 2020.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from checkmate import Plan
from checkmate_solvers.engines.program import Draft, Ids
from checkmate_solvers.literature.stages.shape import Shape

__all__ = ["PaperProgram"]


class PaperProgram:
    """The program of one shape, and where its columns are.

    Attributes:
        program: in cost units of the shape; with frontier-advancing stages it counts recomputation only.
        compute: columns R, shape ``[n_stages, n_ops]``.
        retain: columns S, shape ``[n_stages + 1, m]``.
    """

    def __init__(self, shape: Shape, *, strengthened: bool = True) -> None:
        """Draft it."""
        draft = Draft()
        self.shape, self.compute, self.retain = shape, shape.computes(draft), shape.retains(draft)
        compute, here, following = self.compute, self.retain[:-1], self.retain[1:]
        tensor, op = (ids[shape.uses[1] != shape.maker[shape.uses[0]]] for ids in shape.uses)  # reads
        draft.rows(
            (compute[:, shape.maker[tensor]], 1.0),
            (here[:, tensor], 1.0),
            (compute[:, op], -1.0),
            lower=0.0,
            where=compute[:, op] >= 0,
        )
        there = draft.rows(
            (compute[:, shape.maker], 1.0), (here, 1.0), (following, -1.0), lower=0.0, where=following >= 0
        )
        if not shape.partitioned:
            once = np.array([not op.recomputable for op in shape.graph.ops], dtype=np.bool_)
            draft.extend(draft.rows((compute[0, once], 1.0), upper=1.0), compute[1:, once], 1.0)
        free = draft.columns(compute[:, shape.uses[1]] >= 0, integral=not strengthened)
        _memory(draft, shape, compute, here, free)
        if strengthened:
            draft.extend(there[:, shape.uses[0]], free, -1.0)
        (_strong_frees if strengthened else _frees)(draft, shape, compute, following, free)
        self.program = draft.program()

    def plan(self, values: npt.NDArray[np.float64]) -> Plan:
        """The stage plan of a whole solution."""
        shape = self.shape
        retain = np.zeros((shape.n_stages, shape.graph.n_tensors), dtype=np.bool_)
        retain[:, shape.kept] = self.retained(values) > 0.5
        return Plan(shape.graph, _read(values, self.compute) > 0.5, retain)

    def retained(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """S of a solution, perhaps fractional; shape ``[n_stages, m]``."""
        return _read(values, self.retain[:-1])


def _read(values: npt.NDArray[np.float64], columns: Ids) -> npt.NDArray[np.float64]:
    return np.where(columns >= 0, values[columns], 0.0)


def _memory(draft: Draft, shape: Shape, compute: Ids, here: Ids, free: Ids) -> None:
    """(2), (3) and (1f)."""
    n_ops = compute.shape[1]
    running = compute >= 0
    held = draft.columns(np.column_stack([running[:, :1], running]), most=shape.limit)
    start = draft.rows((held[:, 0], -1.0), lower=0.0, upper=0.0)
    draft.extend(start[:, None], here, shape.sizes)
    made = np.bincount(shape.maker, shape.sizes, n_ops).astype(np.float64)
    step = draft.rows(
        (held[:, :-1], 1.0), (compute, made), (held[:, 1:], -1.0), lower=0.0, upper=0.0, where=running
    )
    tensor, op = shape.uses
    draft.extend(step[:, op], free, -shape.sizes[tensor])
    draft.rows((held[:, :-1], 1.0), (compute, shape.fresh), upper=shape.limit, where=running)


def _frees(draft: Draft, shape: Shape, compute: Ids, following: Ids, free: Ids) -> None:
    """(7), as in the paper."""
    tensor, op = shape.uses
    pairs = _later(shape)
    later = compute[:, op[pairs[:, 1]]]
    most = np.full(free.shape, 2.0)
    for use, reader in pairs.tolist():
        most[:, use] += compute[:, op[reader]] >= 0
    hazards = ((compute[:, op], -1.0), (following[:, tensor], 1.0))
    for factor, bounds in ((1.0, {"lower": 0.0}), (most, {"upper": most - 1.0})):
        rows = draft.rows((free, factor), *hazards, where=free >= 0, **bounds)
        draft.extend(rows[:, pairs[:, 0]], np.where(free[:, pairs[:, 0]] >= 0, later, -1), 1.0)


def _strong_frees(draft: Draft, shape: Shape, compute: Ids, following: Ids, free: Ids) -> None:
    tensor, op = shape.uses
    draft.rows((free, 1.0), (compute[:, op], -1.0), upper=0.0, where=free >= 0)
    once = draft.rows((following, 1.0), upper=1.0, where=following >= 0)
    draft.extend(once[:, tensor], free, 1.0)
    pairs = _later(shape)
    reader = np.unique(pairs[:, 1])
    before = draft.rows((compute[:, op[reader]], 1.0), upper=1.0, where=compute[:, op[reader]] >= 0)
    draft.extend(before[:, np.searchsorted(reader, pairs[:, 1])], free[:, pairs[:, 0]], 1.0)


def _later(shape: Shape) -> Ids:
    """Pairs of uses of one tensor, the earlier one first; shape ``[pairs, 2]``."""
    ends = np.searchsorted(shape.uses[0], shape.uses[0], side="right").tolist()
    pairs = [(first, later) for first, end in enumerate(ends) for later in range(first + 1, end)]
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)

r"""The program of the Checkmate paper in stages, for ops that make several tensors and need workspace.

Stages t = 0 … T − 1 follow each other. R[t, k] = 1 if stage t computes op k; S[t, u] = 1 if tensor u is held
from stage t − 1 into stage t, or for t = T at the end. *Frontier-advancing* stages (equations 8a–8c): op t
first runs in stage t, so R[t, t] = 1, and no op of a larger number ran before. If an output may have to come
back after the last op, one more stage follows it.

Beside R and S: F[t, u, k] = 1 if tensor u is freed in stage t right after op k, which makes or reads it;
V[t, k] are the bytes held in stage t just before the turn of op k. In a stage ops run in base order, each at
most once.

    min Σ c_k R[t, k]
    R[t, j] ≤ R[t, p(u)] + S[t, u]                         if j reads u                          (1b)
    S[t + 1, u] ≤ R[t, p(u)] + S[t, u]                                                           (1c)
    V[t, 0] = Σ_u |u| S[t, u]                                                                    (2)
    V[t, k + 1] = V[t, k] + |outputs of k| R[t, k] − Σ_u |u| F[t, u, k]                          (3)
    V[t, k] + (|outputs of k| + workspace of k) R[t, k] ≤ room                                   (1f)
    F[t, u, k] = 1  ⟺  hazards = (1 − R[t, k]) + S[t + 1, u] + Σ_{j > k reads u} R[t, j] = 0     (5, 7)

The paper writes the last row, with κ the most hazards, as 1 − F ≤ hazards ≤ κ (1 − F). *Strengthened*, it is

    F[t, u, k] ≤ R[t, k],   Σ_k F[t, u, k] + S[t + 1, u] ≤ 1,   Σ_{k < j} F[t, u, k] + R[t, j] ≤ 1
    Σ_k F[t, u, k] + S[t + 1, u] ≤ R[t, p(u)] + S[t, u]    only a resident tensor can be freed or kept

which leaves the same schedules, cuts off fractional points, and needs no whole F. Numbers of equations: Jain
et al., "Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization", MLSys 2020.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from checkmate import DFGraph, Plan, lower
from checkmate.analysis import needed_ops
from checkmate_solvers.milp import Draft, Ids

__all__ = ["NEEDED_COST", "Needed", "PaperProgram", "Shape"]

NEEDED_COST = 6
"""Cost of cutting a graph to its needed part, in simulations; a solver gives up if less time is left."""
_MOST_UNITS = 2**18
"""Units in which the room is counted, at most: an engine's tolerances then mean less than a unit."""
_MOST_ENTRIES = 3_000_000
"""Non-zero coefficients of a program, at most, so that it fits into little memory."""
_ENTRIES_PER_S = 500_000
"""Non-zero coefficients, at most, for each second of the time limit."""


class Needed:
    """A graph without the ops that no graph output needs, and without the outputs of those ops.

    Attributes:
        graph: the needed ops alone, in base order.
        ops: the index of each needed op in the whole graph.
        tensors: the index of each tensor of ``graph`` in the whole graph.
        room: bytes of the budget beside graph inputs and ``fixed_size``.
    """

    def __init__(self, whole: DFGraph, budget: int) -> None:
        self.ops: list[int] = np.flatnonzero(needed_ops(whole)).tolist()
        self.tensors = [*whole.inputs, *(t for v in self.ops for t in whole.ops[v].outputs)]
        ids = {t: i for i, t in enumerate(self.tensors)}

        def here(tensors: Iterable[int]) -> tuple[int, ...]:
            return tuple(ids[t] for t in tensors)

        ops = (whole.ops[v] for v in self.ops)
        self.graph = replace(
            whole,
            ops=tuple(
                replace(op, inputs=here(op.inputs), outputs=here(op.outputs), reuses=here(op.reuses))
                for op in ops
            ),
            tensors=tuple(whole.tensors[t] for t in self.tensors),
            inputs=here(whole.inputs),
            outputs=here(whole.outputs),
        )
        self.room = budget - whole.base_size

    def sequence(self, plan: Plan) -> list[int]:
        """The computes of a stage plan of this part, as ops of the whole graph."""
        return [self.ops[v] for v in lower(plan).sequence.tolist()]


class Shape:
    """The stages of one graph, and how bytes and costs are counted in them.

    The unit of bytes is their greatest common divisor, or larger if the room would have more than 2^18 units.

    Args:
        graph: a graph of needed ops only; an attribute, too.
        room: bytes that are available beside graph inputs and ``fixed_size``.
        partitioned: frontier-advancing stages; False = one stage for each op, in which any op may run; an
            attribute, too.
        roundup: round bytes up, so that a schedule that fits by this count fits; else down, so that every
            schedule that fits also fits by this count.

    Attributes:
        n_stages: T.
        kept: the tensors of S: made by ops, and read or graph outputs; shape ``[m]``.
        maker: the op that makes each tensor of ``kept``, shape ``[m]``.
        uses: two arrays: positions of tensors in ``kept``, and for each an op that makes or reads it; sorted.
        exact: whether bytes are counted as the simulator does: without rounding, and no op reuses an input.
        sizes: units of each kept tensor, shape ``[m]``.
        fresh: units that an op needs beside its inputs while it runs: outputs, workspace; shape ``[n_ops]``.
        limit: units of the room.
        cost_unit: cost of the most expensive op that has a variable.
    """

    def __init__(self, *, graph: DFGraph, room: int, partitioned: bool = True, roundup: bool = False) -> None:
        self.graph, self.partitioned = graph, partitioned
        comes_back = any(0 <= graph.producer[u] < graph.n_ops - 1 for u in graph.outputs)
        self.n_stages = graph.n_ops + (partitioned and comes_back)
        used = np.zeros(graph.n_tensors, dtype=np.bool_)
        used[[*graph.reads.indices, *graph.outputs]] = True
        self.kept: Ids = np.flatnonzero(used & (graph.producer >= 0))
        self.maker: Ids = graph.producer[self.kept]
        users = [(graph.producer[u], *graph.readers.row(u)) for u in self.kept.tolist()]
        pairs = [(i, v) for i, ops in enumerate(users) for v in ops]
        tensor, op = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        self.uses: tuple[Ids, Ids] = tensor, op
        divisor = math.gcd(*graph.sizes.tolist(), *graph.workspaces.tolist()) or 1
        unit = divisor * max(1, -(-(room // divisor) // _MOST_UNITS))

        def units(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
            return (-(-sizes // unit) if roundup else sizes // unit).astype(np.float64)

        self.exact = unit == divisor and not len(graph.reuses.indices)
        sizes = units(graph.sizes)
        self.sizes = sizes[self.kept]
        made = np.array([sizes[list(op.outputs)].sum() for op in graph.ops])
        self.fresh = made + units(graph.workspaces)
        self.limit = float(room // unit)
        self._priced = np.array([op.recomputable or not partitioned for op in graph.ops], dtype=np.bool_)
        self.cost_unit = float(graph.costs[self._priced].max(initial=0.0)) or 1.0

    def fits_in(self, seconds: float) -> bool:
        """Whether the program takes little memory, and building it only a part of ``seconds``."""
        per_stage = 8 * len(self.uses[0]) + 6 * self.graph.n_ops + 4 * len(self.kept)
        entries = per_stage * self.n_stages // (2 if self.partitioned else 1)
        return entries <= min(_MOST_ENTRIES, _ENTRIES_PER_S * seconds)

    def computes(self, draft: Draft) -> Ids:
        """Columns R, shape ``[n_stages, n_ops]``; objective: the cost of recomputation, or of all runs."""
        stage, op = np.ogrid[: self.n_stages, : self.graph.n_ops]
        first = self.partitioned & (stage == op)
        return draft.columns(
            (op <= stage) | (not self.partitioned),
            least=first,
            most=first | self._priced,
            cost=np.where(first, 0.0, self.graph.costs / self.cost_unit),
            integral=True,
        )

    def retains(self, draft: Draft) -> Ids:
        """Columns S, shape ``[n_stages + 1, m]``; the last row holds the graph outputs and nothing else."""
        stage = np.arange(self.n_stages + 1)[:, None]
        last, asked = stage == self.n_stages, np.isin(self.kept, self.graph.outputs)
        free = self.partitioned & (self.graph.sizes[self.kept] == 0)  # held for nothing
        return draft.columns(
            stage > (self.maker if self.partitioned else np.zeros_like(self.maker)),
            least=np.where(last, asked, free),
            most=~last | asked,
            integral=True,
        )


class PaperProgram:
    """The paper's program for one shape, and where its columns are.

    Attributes:
        program: costs are in the shape's cost units; frontier-advancing stages count recomputation only.
        compute: columns R, shape ``[n_stages, n_ops]``.
        retain: columns S, shape ``[n_stages + 1, m]``.
    """

    def __init__(self, shape: Shape, *, strengthened: bool = True) -> None:
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
    """Add the rows (2), (3) and (1f): the bytes held before the turn of each op, and the room."""
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
    """Add the rows (7) of the paper: a tensor is freed if and only if there is no hazard."""
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
    """Add the strengthened rows instead of (7)."""
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

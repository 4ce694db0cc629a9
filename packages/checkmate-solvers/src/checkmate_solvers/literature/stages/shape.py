"""Stages, and which cells of R and S there are.

Stages t = 0 … T − 1 follow each other. R[t, k] = 1 if stage t computes op k; S[t, u] = 1 if tensor u is held
from stage t − 1 into stage t, or for t = T at the end. *Frontier-advancing* stages (Jain et al., "Checkmate",
MLSys 2020, equations 8a–8c): stage t is that in which op t first runs, so R[t, t] = 1, and nothing of a
larger number was there before. One stage more follows the last op where an output may have to come back after
it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from checkmate import DFGraph, Plan, lower
from checkmate.analysis import needed_ops
from checkmate_solvers.engines.program import Draft, Ids

__all__ = ["NEEDED", "Needed", "Shape"]

NEEDED = 6
"""A graph is cut to its needed part in about the time that judging this many schedules takes."""

_MOST_UNITS = 2**18
_MOST_ENTRIES = 3_000_000
_ENTRIES_PER_S = 500_000


class Needed:
    """A graph without the ops that no graph output needs, and without their outputs.

    Attributes:
        graph: of the needed ops alone, in base order.
        ops: for each of them, its index in the whole graph.
        tensors: for each of its tensors, the same.
        room: bytes of a budget beside graph inputs and ``fixed_size``.
    """

    def __init__(self, whole: DFGraph, budget: int) -> None:
        """Cut the needed part out of a graph."""
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

    Bytes are counted in units of their greatest common divisor; if the room has then more than 2^18, in
    larger ones.

    Args:
        graph: all of its ops are needed; an attribute, too.
        room: bytes beside graph inputs and ``fixed_size``.
        partitioned: frontier-advancing stages; else one for each op, and any may compute anything; an
            attribute, too.
        roundup: round bytes up, so that a schedule that fits by this count fits; else down, so that every
            schedule that fits also fits by this count.

    Attributes:
        n_stages: T.
        kept: the tensors of S: made by ops, and read or graph outputs; shape ``[m]``.
        maker: the op that makes each of them, shape ``[m]``.
        uses: positions in ``kept`` of the tensors that ops make or read, and these ops; in this order.
        exact: whether bytes are counted as the simulator does: without rounding, and no op reuses an input.
        sizes: units of each kept tensor, shape ``[m]``.
        fresh: units that an op needs beside its inputs while it runs: outputs, workspace; shape ``[n_ops]``.
        limit: units of the room.
        cost_unit: cost of the most expensive op that has a variable.
    """

    def __init__(self, *, graph: DFGraph, room: int, partitioned: bool = True, roundup: bool = False) -> None:
        """Count the stages, bytes and costs."""
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
        """Whether the program is small enough to be built in a part of that time, and in little memory."""
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

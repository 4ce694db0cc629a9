"""A plan: two boolean matrices over stages, R (ops computed) and S (tensors retained).

Time is cut into stages. R[t, v] = 1: stage t computes op v. S[t, u] = 1: tensor u is held from stage t − 1
into stage t. A stage computes its ops in base order. A plan can be executed if

    R[t, v] ≤ R[t, producer(u)] + S[t, u]         for every tensor u that v reads            (1b)
    S[t, u] ≤ R[t − 1, producer(u)] + S[t − 1, u],  S[0, u] = 0                           (1c, 1d)

and every graph output is made in, or retained into, the last stage. These are the matrices and equations of
Jain et al., "Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization", MLSys 2020, section
4. There a tensor is its op, and the number of stages equals the number of ops: op t first runs in stage t.
Schedules that compute in another order need more stages. Graph inputs are always resident, and S leaves them
out. :func:`checkmate.lower` turns a plan into its schedule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from checkmate.errors import PlanError
from checkmate.model.graph import DFGraph
from checkmate.model.schedule import Schedule

__all__ = ["Plan"]

_MOST_CELLS = 2**30  # entries of both matrices together; one byte each


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Plan:
    """Which ops each stage computes, and which tensors are retained into it.

    The matrices are dense, for pictures and formulations of up to some 20 000 ops; for more ops use a
    :class:`~checkmate.model.schedule.Schedule`.

    Attributes:
        graph: the graph.
        compute: R; bool, shape ``[n_stages, n_ops]``, read-only.
        retain: S; bool, shape ``[n_stages, n_tensors]``, read-only. Columns of graph inputs are
            always false.

    Raises:
        PlanError: if a matrix has another shape or type, or if they have more than 2^30 entries.

    >>> graph = DFGraph.from_nodes(cost=[1, 1, 1], size=[4, 4, 4], deps=[[], [0], [0, 1]])
    >>> plan = Plan.of(graph, Schedule.from_sequence(graph, [0, 1, 0, 2]))
    >>> plan.compute.astype(int)
    array([[1, 0, 0],
           [0, 1, 0],
           [1, 0, 1]])
    >>> plan.retain.astype(int)
    array([[0, 0, 0],
           [1, 0, 0],
           [0, 1, 0]])
    """

    graph: DFGraph
    compute: npt.NDArray[np.bool_]
    retain: npt.NDArray[np.bool_]

    def __post_init__(self) -> None:
        n_stages = next(iter(np.shape(self.compute)), 0)
        _check_cells(n_stages, self.graph)
        compute = _matrix(self.compute, (n_stages, self.graph.n_ops), "compute")
        retain = _matrix(self.retain, (n_stages, self.graph.n_tensors), "retain")
        retain[:, list(self.graph.inputs)] = False
        compute.flags.writeable = retain.flags.writeable = False
        object.__setattr__(self, "compute", compute)
        object.__setattr__(self, "retain", retain)

    @classmethod
    def of(cls, graph: DFGraph, schedule: Schedule) -> Self:
        """The plan of a valid schedule: its computes, and the tensors that have to be held between them.

        A stage ends with the first run of an op, and also where the next op does not follow this one in base
        order; so lowering the plan gives the same computes in the same order. If a schedule first runs the
        ops in base order, and recomputes in base order between two first runs, then op t first runs in stage
        t, as in the paper. A tensor is retained into a stage if that stage or a later one reads it, or it is
        needed at the end, before it is made again. The frees of the schedule are ignored: the plan does not
        show tensors that it holds longer.

        Raises:
            PlanError: if the schedule computes an unknown op, or needs a tensor that was never made; or as
                the class does.
        """
        sequence = schedule.sequence
        if len(sequence) and int(sequence.max()) >= graph.n_ops:
            raise PlanError(
                f"the schedule computes {graph.op_label(int(sequence.max()))}, which this graph does not have"
            )
        stages = _stages(sequence)
        n_stages = int(stages[-1]) + 1 if len(stages) else 0
        _check_cells(n_stages, graph)
        compute = np.zeros((n_stages, graph.n_ops), dtype=np.bool_)
        compute[stages, sequence] = True
        return cls(graph, compute, _live(graph, sequence.tolist(), stages.tolist(), n_stages))

    @classmethod
    def from_retained(cls, graph: DFGraph, retain: npt.NDArray[np.bool_]) -> Self:
        """The cheapest plan that retains exactly these tensors: R from S, as after rounding S in the paper.

        The number of stages equals the number of ops. Stage t computes op t (R[t, t] = 1), and before it
        whatever is missing: the tensors that S gains at stage t + 1 (in the last stage: the graph outputs),
        and the inputs of these computations. Each tensor has one producer, so this R is the unique least one:
        without any of its entries, the plan could not be executed.

        Source: section 5 of the paper, the second phase of two-phase rounding. ``retain`` is S, of shape
        ``[n_ops, n_tensors]``.

        Raises:
            PlanError: if a tensor is retained into a stage before its op has run, or if an op that may run
                only once would have to run again; or as the class does.

        >>> graph = DFGraph.from_nodes(cost=[1, 1, 1], size=[4, 4, 4], deps=[[], [0], [0, 1]])
        >>> keep_all = np.tri(3, k=-1, dtype=bool)
        >>> Plan.from_retained(graph, keep_all).compute.astype(int).tolist()
        [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
        >>> Plan.from_retained(graph, keep_all & [True, False, True]).compute.astype(int).tolist()
        [[1, 0, 0], [0, 1, 0], [0, 1, 1]]
        """
        _check_cells(graph.n_ops, graph)
        kept = _matrix(retain, (graph.n_ops, graph.n_tensors), "retain")
        kept[:, list(graph.inputs)] = False
        early = kept & (graph.producer >= np.arange(graph.n_ops)[:, None])
        if early.any():
            t, u = map(int, np.argwhere(early)[0])
            maker = graph.op_label(int(graph.producer[u]))
            raise PlanError(
                f"retain: stage {t} can't retain {graph.tensor_label(u)}: {maker} first runs in a stage of "
                "its own number; a tensor can be retained into later stages only"
            )
        wanted = np.zeros(graph.n_tensors, dtype=np.bool_)
        wanted[list(graph.outputs)] = True
        compute = np.zeros((graph.n_ops, graph.n_ops), dtype=np.bool_)
        for t in range(graph.n_ops - 1, -1, -1):
            compute[t, _missing(graph, t, kept[t], wanted)] = True
            wanted = kept[t]
        return cls(graph, compute, kept)

    @property
    def n_stages(self) -> int:
        """Number of stages."""
        return len(self.compute)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Plan)
            and self.graph == other.graph
            and np.array_equal(self.compute, other.compute)
            and np.array_equal(self.retain, other.retain)
        )

    def __hash__(self) -> int:
        return hash((self.compute.shape, self.compute.tobytes()))

    def __repr__(self) -> str:
        return (
            f"<Plan: {self.n_stages} stages, {np.count_nonzero(self.compute)} computes, "
            f"{np.count_nonzero(self.retain)} retained>"
        )


def _matrix(given: npt.NDArray[np.bool_], shape: tuple[int, int], name: str) -> npt.NDArray[np.bool_]:
    """A private copy; PlanError if its type or shape differs."""
    array = np.asarray(given)
    if array.shape != shape or array.dtype != np.bool_:
        raise PlanError(f"{name} is of {array.dtype} with shape {array.shape}, must be of bool with {shape}")
    return array.copy(order="C")


def _check_cells(n_stages: int, graph: DFGraph) -> None:
    cells = n_stages * (graph.n_ops + graph.n_tensors)
    if cells > _MOST_CELLS:
        raise PlanError(
            f"a plan of {n_stages} stages, {graph.n_ops} ops and {graph.n_tensors} tensors has {cells} "
            f"entries, more than {_MOST_CELLS}: its matrices are dense; use a Schedule"
        )


def _stages(sequence: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The stage of each compute."""
    is_first = np.zeros(len(sequence), dtype=np.bool_)
    is_first[np.unique(sequence, return_index=True)[1]] = True
    begins = np.zeros(len(sequence), dtype=np.int64)
    begins[1:] = is_first[:-1] | (sequence[1:] <= sequence[:-1])
    return np.cumsum(begins)


def _live(graph: DFGraph, sequence: list[int], stages: list[int], n_stages: int) -> npt.NDArray[np.bool_]:
    """S: each copy from the stage after its compute to the stage of its last read."""
    columns = np.zeros((graph.n_tensors, n_stages), dtype=np.bool_)
    dead = -1
    last_read = [dead] * graph.n_tensors
    for u in graph.outputs:
        last_read[u] = n_stages
    for v, t in zip(reversed(sequence), reversed(stages), strict=True):
        for u in graph.ops[v].outputs:
            columns[u, t + 1 : last_read[u] + 1] = True
            last_read[u] = dead
        for u in graph.ops[v].inputs:
            if last_read[u] == dead:
                last_read[u] = t
    for u in set(range(graph.n_tensors)).difference(graph.inputs):
        if last_read[u] != dead:
            raise PlanError(
                f"the schedule needs {graph.tensor_label(u)} but hasn't made it: it is invalid, and "
                "checkmate.simulate names the step"
            )
    return columns.T


def _missing(graph: DFGraph, t: int, kept: npt.NDArray[np.bool_], wanted: npt.NDArray[np.bool_]) -> list[int]:
    """The ops of stage t: op t, and those that make the tensors missing for it or for the next stage."""
    computed = {t}
    stack = [*graph.ops[t].inputs, *np.flatnonzero(wanted & ~kept).tolist()]
    while stack:
        u = stack.pop()
        v = int(graph.producer[u])
        if v < 0 or v in computed or kept[u]:
            continue
        if not graph.ops[v].recomputable:
            raise PlanError(
                f"stage {t} needs {graph.tensor_label(u)} of {graph.op_label(v)}, which may run only once: "
                f"retain it in every stage from {v + 1} to {t}"
            )
        computed.add(v)
        stack += graph.ops[v].inputs
    return list(computed)

"""From kept tensors to computed ops: the schedule of a plan, and op sequences from sets of kept tensors.

There are two descriptions of the kept tensors:

- A :class:`~checkmate.model.plan.Plan` lists for every stage the ops that it computes and the tensors
  retained into it; :func:`lower` checks that it can be executed, and adds the frees.
- A *moment* is a position in the base order with a set of tensors. Run the base order. At a moment, just
  before its op first runs, recompute the tensors that the set has gained since the moment before, and drop
  every other tensor made so far. Afterwards recompute missing tensors as late as possible: just before the op
  that reads them, with missing ancestors, in base order. Between two moments no op is recomputed twice. The
  cost is the cost of the base order plus, for each moment, the cost of the ops that recompute the tensors
  missed after it. No matrix of ops × tensors is built, which is why solvers use moments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from checkmate.errors import PlanError
from checkmate.model.graph import DFGraph
from checkmate.model.plan import Plan
from checkmate.model.schedule import Schedule

__all__ = ["chunks_from_moments", "lazy_sequence", "lower", "sequence_from_moments"]


def lower(plan: Plan) -> Schedule:
    """The schedule of a plan: its stages one after the other, and every free as early as legal.

    A retained tensor that no later op reads is freed anyway, so the peak is the least of all schedules
    with these computes in this order. ``lower(Plan.of(graph, schedule))`` has the computes
    of ``schedule``, in its order.

    Raises:
        PlanError: if the plan can't be executed; names the stage, and the op or tensor.

    >>> graph = DFGraph.from_nodes(cost=[1, 1], size=[4, 4], deps=[[], [0]])
    >>> list(lower(Plan(graph, np.eye(2, dtype=bool), np.tri(2, k=-1, dtype=bool))))
    [Compute(op=0), Compute(op=1), Free(tensor=0)]
    """
    _check(plan)
    return Schedule.from_sequence(plan.graph, np.nonzero(plan.compute)[1].tolist())


def lazy_sequence(graph: DFGraph, keep: npt.NDArray[np.bool_], at: int) -> list[int]:
    """The base order with one moment at which tensors are dropped, and the recomputation that follows.

    Graph inputs and outputs of non-recomputable ops are never dropped. Dropped graph outputs are recomputed
    at the end at the latest.

    Args:
        graph: the graph.
        keep: which tensors are kept at the moment; shape ``[n_tensors]``. Entries of graph inputs and of
            tensors made at or after ``at`` don't matter.
        at: the op before whose first run all other tensors are dropped, 0 … n_ops.

    Returns:
        Op indices with repeats, for :meth:`Schedule.from_sequence`.

    Raises:
        ValueError: if ``keep`` or ``at`` does not fit the graph.

    >>> graph = DFGraph.from_nodes(cost=[1, 1, 1, 1], size=[4] * 4, deps=[[], [0], [1], [0, 2]])
    >>> lazy_sequence(graph, np.array([False, True, True, True]), at=2)
    [0, 1, 2, 0, 3]
    """
    return sequence_from_moments(graph, {at: keep})


def sequence_from_moments(graph: DFGraph, moments: Mapping[int, npt.NDArray[np.bool_]]) -> list[int]:
    """As :func:`lazy_sequence` with any number of moments; ``moments[at]`` is ``keep`` of moment ``at``."""
    return [v for chunk in chunks_from_moments(graph, moments) for v in chunk]


def chunks_from_moments(graph: DFGraph, moments: Mapping[int, npt.NDArray[np.bool_]]) -> Iterator[list[int]]:
    """:func:`sequence_from_moments` in pieces, so that a caller can stop when it becomes too long."""
    for at, keep in moments.items():
        if keep.shape != (graph.n_tensors,):
            raise ValueError(f"keep has the shape {keep.shape}, must be ({graph.n_tensors},)")
        if not 0 <= at <= graph.n_ops:
            raise ValueError(f"at is {at}, must be within 0 … {graph.n_ops}")
    missing = bytearray(graph.n_tensors)
    for v, op in enumerate(graph.ops):
        if v in moments:
            yield _restored(graph, np.flatnonzero(moments[v]).tolist(), missing)
            _forget(graph, moments[v], v, missing)
        yield [*_restored(graph, op.inputs, missing), v]
    if graph.n_ops in moments:
        yield _restored(graph, np.flatnonzero(moments[graph.n_ops]).tolist(), missing)
        _forget(graph, moments[graph.n_ops], graph.n_ops, missing)
    yield _restored(graph, graph.outputs, missing)


def _check(plan: Plan) -> None:
    """Raise PlanError unless the reads and retained tensors of every stage, and the outputs, are resident."""
    graph = plan.graph
    resident = graph.producer < 0
    ran = bytearray(graph.n_ops)
    for t, (computes, retains) in enumerate(zip(plan.compute, plan.retain, strict=True)):
        if (lost := retains & ~resident).any():
            before = (
                f"which stage {t - 1} neither computes nor retains" if t else "but nothing comes before it"
            )
            raise PlanError(f"stage {t} retains {graph.tensor_label(int(lost.argmax()))}, {before}")
        # Op and its inputs may both run in this stage: producers precede readers in base order.
        resident = retains | np.append(computes, True)[graph.producer]  # graph inputs: producer −1, the True
        for v in np.flatnonzero(computes).tolist():
            op = graph.ops[v]
            for u in op.inputs:
                if not resident[u]:
                    raise PlanError(
                        f"stage {t} computes {graph.op_label(v)}, which reads {graph.tensor_label(u)}: "
                        "neither retained into that stage nor computed in it"
                    )
            if ran[v] and not op.recomputable:
                raise PlanError(f"stage {t} computes {graph.op_label(v)} again, which may run only once")
            ran[v] = True
    for u in graph.outputs:
        if not resident[u]:
            raise PlanError(
                f"the graph output {graph.tensor_label(u)} is neither retained into the last stage nor "
                "computed in it"
            )


def _forget(graph: DFGraph, keep: npt.NDArray[np.bool_], at: int, missing: bytearray) -> None:
    """Mark as missing the tensors that ops before ``at`` made and may make again, unless kept."""
    can_return = np.array([op.recomputable for op in graph.ops[:at]], dtype=np.bool_)
    made = np.flatnonzero((graph.producer >= 0) & (graph.producer < at) & ~keep)
    np.frombuffer(missing, dtype=np.bool_)[made[can_return[graph.producer[made]]]] = True


def _restored(graph: DFGraph, wanted: Iterable[int], missing: bytearray) -> list[int]:
    """The ops that recompute the wanted tensors, in base order; clears their outputs in ``missing``."""
    producer = graph.producer
    closure: list[int] = []
    stack = [t for t in wanted if missing[t]]
    while stack:
        t = stack.pop()
        if not missing[t]:
            continue
        v = int(producer[t])
        closure.append(v)
        for made in graph.ops[v].outputs:
            missing[made] = False
        stack += [u for u in graph.ops[v].inputs if missing[u]]
    return sorted(closure)

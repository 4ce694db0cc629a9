r"""One moment of a schedule: the tensors resident while op t first runs, and the ops that run again later.

Let A be the ops that certainly ran before that moment, D the ops that certainly run after it, and U all
others except t. For an op o in U, a_o = 1 if o first runs after the moment (a_o = 0 in A, 1 in D). For a
tensor T made in A or U, x_T = 1 if T is resident at the moment; for an op o in A or U, r_o = 1 if o runs
after it though it ran before. Every schedule within the budget satisfies

    x_T + r_p(T) + a_p(T) ≥ 1      if T is read in D or is a graph output           (p(T) makes T)
    x_T + r_p(T) + a_p(T) ≥ r_o and ≥ a_o      if o reads T
    x_T + a_p(T) ≤ 1
    a_p(T) ≤ a_o     if o in U reads T
    r_o = 0          if o is not recomputable
    x_T = 1          if t reads T
    Σ |T| x_T ≤ budget − fixed bytes − graph inputs − outputs and workspace of t + inputs that t reuses

and costs at least Σ c_v over all needed ops v plus Σ c_o r_o. The minimum of that sum is therefore a lower
bound, and its x a good decision. With a fixed order, A and D are the needed ops before and after t in the
base order, and U is empty. If schedules may reorder, only ancestors and descendants of t are certain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order

from checkmate import DFGraph, Problem
from checkmate.analysis import liveness, needed_ops, working_sets

__all__ = ["Decision", "Mask", "Moment", "crowded_ops", "moment_at"]

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moment:
    """The moment at which op ``at`` first runs.

    Attributes:
        graph: the graph.
        at: the op t.
        before: A, shape ``[n_ops]``.
        after: D, shape ``[n_ops]``.
        unsure: U, shape ``[n_ops]``.
        made: tensors made in A or U, shape ``[n_tensors]``.
        needed: tensors of ``made`` that are read in D or are graph outputs, shape ``[n_tensors]``.
        pinned: tensors that t reads, graph inputs left out, shape ``[n_tensors]``.
        room: bytes for the tensors made in A or U while t runs, pinned ones included, also those that t
            reuses; negative if t can't run.
    """

    graph: DFGraph
    at: int
    before: Mask
    after: Mask
    unsure: Mask
    made: Mask
    needed: Mask
    pinned: Mask
    room: int

    @property
    def pinned_size(self) -> int:
        """Bytes of the pinned tensors."""
        return int(self.graph.sizes[self.pinned].sum())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decision:
    """The result of one program, about one moment or some together.

    Attributes:
        recompute: lower bound on the cost of all recomputation; infinite if no schedule fits.
        keep: for each moment, by its op, which tensors are resident there, shape ``[n_tensors]``; those that
            the moment does not decide, or made after it, are kept. Empty if nothing was found.
        finished: whether the engine came to its end: more time would not help.
        again: the share of each op that runs again after each moment and before the next, shape
            ``[n_moments, n_ops]``; None if nothing was found, and always for minimum cuts.
    """

    recompute: float
    keep: dict[int, Mask]
    finished: bool = True
    again: npt.NDArray[np.float64] | None = None


def moment_at(graph: DFGraph, budget: int, at: int, *, fixed_order: bool) -> Moment:
    """The moment at which op ``at`` first runs under ``budget`` bytes.

    Raises:
        ValueError: if no graph output needs the op: a schedule may never run it.
    """
    needed = needed_ops(graph)
    if not needed[at]:
        raise ValueError(f"{graph.op_label(at)} is needed by no graph output: it has no moment")
    index = np.arange(graph.n_ops)
    early, late = (index < at, index > at) if fixed_order else _ancestors_and_descendants(graph, at)
    others = needed & (index != at)
    before, after = others & early, others & late
    unsure = others & ~before & ~after
    made = np.append(before | unsure, False)[graph.producer]
    read, pinned = np.zeros((2, graph.n_tensors), dtype=np.bool_)
    read[graph.reads.indices[after[graph.reads.rows]]] = True
    read[list(graph.outputs)] = True
    pinned[graph.reads.row(at)] = made[graph.reads.row(at)]
    return Moment(
        graph=graph,
        at=at,
        before=before,
        after=after,
        unsure=unsure,
        made=made,
        needed=made & read,
        pinned=pinned,
        room=budget - int(working_sets(graph)[at] - graph.sizes[pinned].sum()),
    )


def crowded_ops(problem: Problem, most: int | None = None) -> list[int]:
    """Ops during which the base order without recomputation is over the budget.

    At most ``most`` ops: the most crowded one, then others evenly spread. None = all, in base order.
    """
    graph = problem.graph
    order = np.flatnonzero(needed_ops(graph))
    memory = liveness(graph, order.tolist()).memory
    crowded = order[memory > problem.budget]
    if most is None or not len(crowded):
        return [int(v) for v in crowded]
    spread = crowded[np.linspace(0, len(crowded) - 1, num=most).astype(int)]
    return list(dict.fromkeys([int(order[memory.argmax()]), *spread.tolist()]))[:most]


def _ancestors_and_descendants(graph: DFGraph, at: int) -> tuple[Mask, Mask]:
    """Which ops certainly run before op ``at``, and after it, in any order; itself in both."""
    reader, maker = graph.reads.rows, graph.producer[graph.reads.indices]
    inner = maker >= 0
    edges = np.ones(np.count_nonzero(inner)), (maker[inner], reader[inner])
    after = csr_array(edges, shape=(graph.n_ops, graph.n_ops))
    found = np.zeros((2, graph.n_ops), dtype=np.bool_)
    for mask, links in zip(found, (after.T.tocsr(), after), strict=True):
        mask[breadth_first_order(links, at, return_predecessors=False)] = True
    return found[0], found[1]

"""The parametric minimum cut: the linear relaxation of one moment, solved by maximum flows.

Price the bytes resident at the moment (see :mod:`checkmate_solvers.frontier`) with λ ≥ 0 and drop the budget:

    L(λ) = min Σ c_o r_o + λ (Σ |T| x_T − room)

For any λ, L(λ) is a lower bound on the recomputation, and its minimum is a cut (a closure problem, Picard
1976): the source side is what is wanted after the moment. A wanted tensor wants its op to run again
(r_o = 1, which costs c_o) or is resident (x_T = 1, which costs λ |T|); an op that runs again wants its
inputs. L is concave and piecewise linear; Newton's method on its two bracketing lines finds the maximum in a
few flows. As every vertex is integral, that maximum is the value of the linear relaxation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from checkmate import Problem, Solution
from checkmate_solvers.frontier import Frontier, Mask, crowded_ops, frontier
from checkmate_solvers.search import Search

__all__ = ["CutBound", "MinCut", "min_cut"]

_INFINITE = 2**31 - 1
_WHOLE = 2**29
"""What capacities are scaled to add up to at most, rounded down: SciPy's flows are int32."""
_MOST_STEPS = 40


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CutBound:
    """What the relaxation of one moment says.

    Attributes:
        recompute: lower bound on the cost of what runs again after the moment; infinite if no schedule
            fits at that moment.
        keep: tensors resident at the moment in the cheapest cut that fits, shape ``[n_tensors]``; tensors
            that the moment says nothing about are kept.
    """

    recompute: float
    keep: Mask


@dataclass(frozen=True, slots=True, kw_only=True)
class MinCut:
    """Bounds and plans from single moments, each plan repaired by eviction; milliseconds.

    Attributes:
        moments: at how many moments of the order to look.
        plans: of how many of them, the strongest, to try the plans.
    """

    moments: int = 8
    plans: int = 2

    def solve(self, problem: Problem) -> Solution:
        """The best of all moments."""
        search = Search(problem)
        if not search.start():
            self.improve(search, fixed_order=problem.fixed_order)
        return search.solution()

    def improve(self, search: Search, *, fixed_order: bool) -> int | None:
        """Offer plans, and prove bounds where they hold.

        Args:
            search: what is known so far.
            fixed_order: take all of the base order as given. The bounds are then proofs only if the
                problem says so too, but the plans may be better.

        Returns:
            The op of the strongest moment; None if no moment is crowded.
        """
        problem = search.problem
        cuts: list[tuple[float, int, Mask]] = []
        for at in crowded_ops(problem, self.moments):
            cut = min_cut(frontier(problem.graph, problem.budget, at, fixed_order=fixed_order))
            if fixed_order <= problem.fixed_order:
                search.prove(cut.recompute, f"min-cut at {problem.graph.op_label(at)}")
            cuts.append((cut.recompute, at, cut.keep))
            if search.done:
                break
        cuts.sort(key=lambda cut: -cut[0])
        for _, at, keep in cuts[: self.plans]:
            if not search.done:
                search.decode({at: keep}, "min-cut")
        return cuts[0][1] if cuts else None


class _Line(NamedTuple):
    """One cut as a line: ``cost + λ · excess`` bounds L(λ) from above."""

    cost: float
    excess: int
    keep: Mask


def min_cut(moment: Frontier) -> CutBound:
    """Maximise L(λ) over λ ≥ 0."""
    network = _Network(moment)
    roomy, (proved, tight) = network.keep_all(), network.keep_least()
    if proved > 0:
        return CutBound(recompute=np.inf, keep=tight.keep)
    if roomy.excess <= max(tight.excess, 0):
        return CutBound(recompute=0.0, keep=roomy.keep)
    best = 0.0
    for _ in range(_MOST_STEPS):
        price = (tight.cost - roomy.cost) / (roomy.excess - tight.excess)
        if price <= 0:
            break
        value, line = network.cut(price)
        best = max(best, value)
        met = roomy.cost + price * roomy.excess
        if line.cost + price * line.excess >= met * (1 - 1e-9) or line.excess in (
            roomy.excess,
            tight.excess,
        ):
            break
        if line.excess > 0:
            roomy = line
        else:
            tight = line
    return CutBound(recompute=best, keep=tight.keep)


class _Network:
    """The flow network of a moment: source 0, sink 1, then ops and tensors that matter."""

    def __init__(self, moment: Frontier) -> None:
        self.moment, graph = moment, moment.graph
        self.pinned_size = int(graph.sizes[moment.pinned].sum())
        self.tensors, self.ops = _relevant(moment)
        op_node = {v: 2 + i for i, v in enumerate(self.ops)}
        tensor_node = {t: 2 + len(self.ops) + i for i, t in enumerate(self.tensors)}
        self.n_nodes = 2 + len(self.ops) + len(self.tensors)
        self.sizes = graph.sizes[self.tensors]
        self.costs = graph.costs[self.ops]
        self.runs_once = np.array([not graph.ops[v].recomputable for v in self.ops], dtype=np.bool_)
        forced = [(0, tensor_node[t]) for t in self.tensors if moment.needed[t]]
        forced += [
            (op_node[v], tensor_node[t]) for v in self.ops for t in graph.ops[v].inputs if t in tensor_node
        ]
        stored = [(tensor_node[t], op_node[int(graph.producer[t])]) for t in self.tensors]
        run = [(op_node[v], 1) for v in self.ops]
        self.edges = np.array([*run, *stored, *forced], dtype=np.int64).reshape(-1, 2)

    def keep_all(self) -> _Line:
        """λ = 0: everything needed is resident, nothing runs again."""
        return self._line(self.moment.needed[self.tensors], np.zeros(len(self.ops), dtype=np.bool_))

    def keep_least(self) -> tuple[int, _Line]:
        """λ = ∞: whatever can run again does; resident is only what can't come back.

        Returns:
            A proved lower bound on the excess, and a cut near it; exact up to 2^29 bytes in all, beyond that
            bytes are counted in whole units.
        """
        unit = -(-int(self.sizes.sum()) // _WHOLE) or 1
        run = np.where(self.runs_once, _INFINITE, 0)
        flow, side = self._flow(self._capacities(run, self.sizes // unit))
        return flow * unit + self.pinned_size - self.moment.room, self._read(side)

    def cut(self, price: float) -> tuple[float, _Line]:
        """L(price), rounded down so that it is valid, and the cut that attains it."""
        total = max(float(self.costs[~self.runs_once].sum()), price * float(self.sizes.sum()))
        scale = _WHOLE / total
        run = np.where(self.runs_once, _INFINITE, np.floor(self.costs * scale))
        flow, side = self._flow(self._capacities(run, np.floor(self.sizes * (price * scale))))
        value = (flow - 1) / scale - price * (self.moment.room - self.pinned_size)
        return value, self._read(side)

    def _capacities(
        self, run: npt.NDArray[np.number], stored: npt.NDArray[np.number]
    ) -> npt.NDArray[np.int32]:
        free = np.full(len(self.edges) - len(run) - len(stored), _INFINITE)
        return np.concatenate([run, stored, free]).astype(np.int32)

    def _flow(self, capacities: npt.NDArray[np.int32]) -> tuple[int, Mask]:
        """Maximum flow and the source side of a minimum cut."""
        shape = (self.n_nodes, self.n_nodes)
        network = csr_array((capacities, (self.edges[:, 0], self.edges[:, 1])), shape=shape)
        result = maximum_flow(network, 0, 1)
        left = network - result.flow
        left.data[left.data < 0] = 0
        left.eliminate_zeros()
        side = np.zeros(self.n_nodes, dtype=np.bool_)
        side[breadth_first_order(left, 0, return_predecessors=False)] = True
        return int(result.flow_value), side

    def _read(self, side: Mask) -> _Line:
        """The cut as x and r."""
        again = side[2 : 2 + len(self.ops)]
        wanted = side[2 + len(self.ops) :]
        runs = dict(zip(self.ops, again.tolist(), strict=True))
        producer = self.moment.graph.producer
        stored = np.array([not runs[int(producer[t])] for t in self.tensors], dtype=np.bool_)
        return self._line(wanted & stored, again)

    def _line(self, resident: Mask, again: Mask) -> _Line:
        keep = np.ones(self.moment.graph.n_tensors, dtype=np.bool_)
        keep[self.tensors] = resident
        held = int(self.sizes[resident].sum()) + self.pinned_size
        return _Line(float(self.costs[again].sum()), held - self.moment.room, keep)


def _relevant(moment: Frontier) -> tuple[list[int], list[int]]:
    """Tensors that may be wanted after the moment, pinned ones left out, and the ops that make them."""
    graph = moment.graph
    wanted = moment.needed & ~moment.pinned
    ops = []
    for v in np.flatnonzero(moment.before)[::-1].tolist():
        if wanted[graph.makes.row(v)].any():
            ops.append(v)
            if graph.ops[v].recomputable:
                for t in graph.ops[v].inputs:
                    wanted[t] |= moment.made_before(t) and not moment.pinned[t]
    return np.flatnonzero(wanted).tolist(), ops[::-1]

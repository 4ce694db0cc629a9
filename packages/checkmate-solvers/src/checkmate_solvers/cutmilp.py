"""The cut MILP: a few moments of the schedule, decided exactly and together.

For moments t_1 < … < t_K, each with the variables and rows of :mod:`checkmate_solvers.frontier`, r_{k,o} says
that op o runs again after t_k and before t_{k+1}, and a tensor stays or comes back:

    x_{k+1,T} ≤ x_{k,T} + r_{k,p(T)}      for T made before t_k

The optimum is a lower bound, stronger with every moment: 2n variables a moment instead of Checkmate's n². For
fixed binary x the rows in r are differences, hence totally unimodular: r needs no integrality.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from checkmate import Problem, Solution
from checkmate_solvers.frontier import Frontier, Mask, crowded_ops, frontier
from checkmate_solvers.search import Search
from checkmate_solvers.silence import native_output_on_stderr

__all__ = ["CutMilp", "CutPlan", "solve_cuts"]

_GAP = 3e-5
"""Relative to the cost of the whole schedule; the objective counts recomputation only."""
_WIDEST_GAP = 0.05
"""Relative to the recomputation."""
_FEASIBILITY = 1e-6
"""HiGHS's tolerance on integers and rows: it takes nodes that are better by less than this for no better."""
_OPTIMALITY = 1e-7
"""HiGHS's tolerance on reduced costs: so much a column, of range [0, 1], may be worth more than it counts."""

_MOST_UNITS = 2**18
"""In how many units of memory the room at a moment is counted, at most."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CutPlan:
    """What the MILP says.

    Attributes:
        recompute: lower bound on the cost of everything that runs again; infinite if proved infeasible.
        keep: for each moment, by its op, which tensors are resident there; None if nothing was found.
    """

    recompute: float
    keep: dict[int, Mask] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CutMilp:
    """Solves the cut MILP, adds the moment at which its plan is most over the budget, and solves again.

    Attributes:
        moments: the most moments at once; more is slow and hardly stronger.
        nodes: the most branch-and-bound nodes of each MILP: a limit that does not depend on the machine.
    """

    moments: int = 5
    nodes: int = 500

    def solve(self, problem: Problem) -> Solution:
        """Bounds and plans, each plan repaired by eviction."""
        search = Search(problem)
        if not search.start():
            self.improve(search, fixed_order=problem.fixed_order)
        return search.solution()

    def improve(self, search: Search, *, fixed_order: bool, first: int | None = None) -> None:
        """Offer plans, and prove bounds where they hold.

        Args:
            search: what is known so far.
            fixed_order: take all of the base order as given. The bounds are then proofs only if the
                problem says so too, but the plans may be better.
            first: the op of the first moment; default the most crowded one.
        """
        problem = search.problem
        chosen: list[Frontier] = []
        at = first if first is not None else next(iter(crowded_ops(problem, 1)), None)
        while at is not None and len(chosen) < self.moments and not search.done:
            moment = frontier(problem.graph, problem.budget, at, fixed_order=fixed_order)
            chosen = sorted([*chosen, moment], key=lambda m: m.at)
            if not all(b.before[a.at] for a, b in itertools.pairwise(chosen)):
                break
            share = search.bound / max(search.bound - search.base, _GAP * search.bound, 1e-300)
            gap = min(_GAP * share, _WIDEST_GAP)
            plan = solve_cuts(chosen, time_limit=search.left_s / 4, nodes=self.nodes, gap=gap)
            if fixed_order <= problem.fixed_order:
                search.prove(plan.recompute, f"cut-milp with {len(chosen)} moments")
            if plan.keep is None:
                break
            literal = search.decode(plan.keep, "cut-milp")
            at = search.overflow(literal, list(plan.keep))


def solve_cuts(moments: Sequence[Frontier], *, time_limit: float, nodes: int, gap: float = _GAP) -> CutPlan:
    """Solve the MILP of these moments, given in the order in which they come.

    Args:
        moments: in base order; if schedules may reorder, each must be an ancestor of the next.
        time_limit: seconds.
        nodes: the most branch-and-bound nodes.
        gap: relative to the recomputation, at which to stop.
    """
    if any(moment.room < moment.graph.sizes[moment.pinned].sum() for moment in moments):
        return CutPlan(recompute=np.inf, keep=None)
    model = _Model(moments)
    if not model.n:  # nothing ran before: nothing to decide
        return CutPlan(recompute=0.0, keep=model.kept(model.objective))
    with native_output_on_stderr():
        result = milp(
            model.objective,
            integrality=model.integrality,
            bounds=Bounds(model.least, model.most),
            constraints=LinearConstraint(model.matrix(), lb=model.lower),
            options={"time_limit": max(time_limit, 0.05), "node_limit": nodes, "mip_rel_gap": gap},
        )
    if result.status == 2 and "infeasible" in result.message:  # 2 also stands for "HiGHS rejects the model"
        return CutPlan(recompute=np.inf, keep=None)
    dual = getattr(result, "mip_dual_bound", None)
    bound = 0.0 if dual is None or not np.isfinite(dual) else _lowered(float(dual), model.n) * model.unit
    return CutPlan(recompute=bound, keep=None if result.x is None else model.kept(result.x))


def _lowered(dual: float, columns: int) -> float:
    """HiGHS's bound less what its tolerances may have added to it, in units of the dearest column."""
    return max(dual * (1 - _FEASIBILITY) - _FEASIBILITY - columns * _OPTIMALITY, 0.0)


def _knapsack(sizes: list[tuple[int, int]], room: int) -> tuple[list[tuple[int, float]], float]:
    """The row ``Σ size · x ≤ room`` for HiGHS: whole numbers, none larger than 2^18.

    HiGHS compares with tolerances, of 1e-6 and less: a row that is full to the byte must not depend on them.
    Sizes and room are divided by their greatest common divisor, then by what is still too much, and rounded
    down: as x is binary, what fits still fits.
    """
    fitting = [(column, size) for column, size in sizes if 0 < size <= room]
    divisor = math.gcd(*(size for _, size in fitting)) or 1
    divisor *= -(-(room // divisor) // _MOST_UNITS) or 1
    return [(column, -float(size // divisor)) for column, size in fitting], -float(room // divisor)


class _Model:
    """Columns and rows of the MILP; costs in units of the dearest that may run again."""

    def __init__(self, moments: Sequence[Frontier]) -> None:
        self.moments = moments
        self.graph = moments[0].graph
        self.x: list[dict[int, int]] = []
        self.r: list[dict[int, int]] = []
        self.n = 0
        self.rows: list[list[tuple[int, float]]] = []
        self.lower: list[float] = []
        for moment in moments:
            ops = [int(v) for v in np.flatnonzero(moment.before)]
            self.x.append(self._columns([t for v in ops for t in self.graph.ops[v].outputs]))
            self.r.append(self._columns([v for v in ops if self.graph.ops[v].recomputable]))
        self.unit = max((self.graph.ops[v].cost for r in self.r for v in r), default=0.0) or 1.0
        self.objective = np.zeros(self.n)
        self.integrality, self.least, self.most = np.zeros(self.n), np.zeros(self.n), np.ones(self.n)
        for k, moment in enumerate(moments):
            self._moment(k, moment)

    def matrix(self) -> csr_array:
        """The rows, sparse."""
        counts = np.cumsum([0, *(len(row) for row in self.rows)])
        columns = np.array([c for row in self.rows for c, _ in row], dtype=np.int32)
        values = np.array([a for row in self.rows for _, a in row])
        return csr_array((values, columns, counts), shape=(len(self.rows), self.n))

    def kept(self, solution: npt.NDArray[np.float64]) -> dict[int, Mask]:
        """The solution's x as masks; tensors that a moment says nothing about are kept."""
        plan = {}
        for moment, columns in zip(self.moments, self.x, strict=True):
            keep = np.ones(self.graph.n_tensors, dtype=np.bool_)
            for t, column in columns.items():
                keep[t] = solution[column] > 0.5
            plan[moment.at] = keep
        return plan

    def _columns(self, keys: Sequence[int]) -> dict[int, int]:
        columns = {key: self.n + i for i, key in enumerate(keys)}
        self.n += len(keys)
        return columns

    def _row(self, entries: list[tuple[int, float]], lower: float) -> None:
        self.rows.append(entries)
        self.lower.append(lower)

    def _available(self, k: int, t: int) -> list[tuple[int, float]]:
        """The terms x + r of tensor ``t``: it is there after moment k."""
        again = self.r[k].get(int(self.graph.producer[t]))
        return [(self.x[k][t], 1.0), *([] if again is None else [(again, 1.0)])]

    def _moment(self, k: int, moment: Frontier) -> None:
        graph, x, r = self.graph, self.x[k], self.r[k]
        last = k + 1 == len(self.moments)
        for t, column in x.items():
            self.integrality[column] = 1
            self.least[column] = float(moment.pinned[t])
            self.most[column] = float(graph.tensors[t].size <= moment.room)
        self._row(*_knapsack([(c, int(graph.sizes[t])) for t, c in x.items()], moment.room))
        wanted = moment.needed if last else self._wanted_until(moment, self.moments[k + 1])
        for t in np.flatnonzero(wanted).tolist():
            self._row(self._available(k, t), 1.0)
        for v, column in r.items():
            self.objective[column] = graph.ops[v].cost / self.unit
            for t in graph.ops[v].inputs:
                if t in x:
                    self._row([*self._available(k, t), (column, -1.0)], 0.0)
        if not last:
            for t in x:
                if t in self.x[k + 1]:
                    self._row([*self._available(k, t), (self.x[k + 1][t], -1.0)], 0.0)

    def _wanted_until(self, moment: Frontier, following: Frontier) -> Mask:
        """Tensors made before this moment that ops between it and the following one read."""
        read = np.zeros(self.graph.n_tensors, dtype=np.bool_)
        for v in np.flatnonzero(moment.after & following.before):
            read[self.graph.reads.row(int(v))] = True
        return np.array([read[t] and t in self.x[self.moments.index(moment)] for t in range(len(read))])

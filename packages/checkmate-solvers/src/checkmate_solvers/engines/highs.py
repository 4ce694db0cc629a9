"""HiGHS as it comes with SciPy: branch and bound, and the dual simplex for linear programs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, linprog, milp
from scipy.sparse import vstack

from checkmate_solvers.engines.program import Outcome, Program
from checkmate_solvers.engines.silence import native_output_on_stderr

__all__ = ["LEAST_S", "Highs", "lowered"]

_FEASIBILITY = 1e-6
"""HiGHS's tolerance on integers and rows."""
_OPTIMALITY = 1e-7
"""HiGHS's tolerance on reduced costs: a column of range [0, 1] may gain this much more."""
_ROUNDING = 1e-13
"""Relative error that sums in float64 may have; generous."""
LEAST_S = 0.05
"""The least time limit that engines get, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Highs:
    """HiGHS, one thread.

    Attributes:
        nodes: the most branch-and-bound nodes; None = limited by time alone.
    """

    nodes: int | None = None

    def solve(self, program: Program, *, time_limit: float, gap: float) -> Outcome:
        """Solve it; the bound of a linear program is computed here, from HiGHS's dual solution."""
        time_limit = max(time_limit, LEAST_S)
        if program.integral.any():
            return self._whole(program, time_limit, gap)
        return _linear(program, time_limit)

    def _whole(self, program: Program, time_limit: float, gap: float) -> Outcome:
        options: dict[str, float] = {"time_limit": time_limit, "mip_rel_gap": gap}
        if self.nodes is not None:
            options["node_limit"] = self.nodes
        with native_output_on_stderr():
            result = milp(
                program.objective,
                integrality=program.integral.astype(np.int64),
                bounds=Bounds(program.least, program.most),
                constraints=LinearConstraint(program.matrix, program.lower, program.upper),
                options=options,
            )
        if _infeasible(result):
            return Outcome(values=None, bound=math.inf, finished=True)
        dual = getattr(result, "mip_dual_bound", None)
        bound = -math.inf if dual is None or not math.isfinite(dual) else lowered(float(dual), program)
        return Outcome(values=result.x, bound=bound, finished=result.status == 0)


def _infeasible(result: OptimizeResult) -> bool:
    """Whether HiGHS proved that; SciPy gives a rejected model the same status 2."""
    return bool(result.status == 2 and "infeasible" in result.message)


def lowered(dual: float, program: Program) -> float:
    """The bound of branch and bound, less the most that the tolerances may have added to it."""
    priced = int(np.count_nonzero(program.objective))
    return dual - abs(dual) * _FEASIBILITY - _FEASIBILITY - priced * _OPTIMALITY


def _linear(program: Program, time_limit: float) -> Outcome:
    equal = program.lower == program.upper
    low, high = (np.isfinite(side) & ~equal for side in (program.lower, program.upper))
    with native_output_on_stderr():
        result = linprog(
            program.objective,
            A_ub=vstack([program.matrix[high], -program.matrix[low]], format="csr"),
            b_ub=np.concatenate([program.upper[high], -program.lower[low]]),
            A_eq=program.matrix[equal],
            b_eq=program.lower[equal],
            bounds=np.column_stack([program.least, program.most]),
            method="highs",
            options={"time_limit": time_limit},
        )
    if _infeasible(result):
        return Outcome(values=None, bound=math.inf, finished=True)
    if result.status != 0 or result.x is None:
        return Outcome(values=None, bound=-math.inf, finished=False)
    prices = np.zeros(len(program.lower))
    upper, lower = np.split(result.ineqlin.marginals, [int(np.count_nonzero(high))])
    prices[high] += upper
    prices[low] -= lower
    prices[equal] = result.eqlin.marginals
    return Outcome(values=result.x, bound=_dual_bound(program, prices), finished=True)


def _dual_bound(program: Program, prices: npt.NDArray[np.float64]) -> float:
    """Lagrange's bound for any prices of the rows: min of c·x − y·(A x − b) over the box alone."""
    prices = np.where((prices > 0) & ~np.isfinite(program.lower), 0.0, prices)
    prices = np.where((prices < 0) & ~np.isfinite(program.upper), 0.0, prices)
    side = np.where(prices > 0, program.lower, np.where(prices < 0, program.upper, 0.0))
    reduced = program.objective - program.matrix.T @ prices
    parts = np.concatenate([prices * side, np.where(reduced > 0, program.least, program.most) * reduced])
    widest = np.maximum(np.abs(program.least), np.abs(program.most))
    summed = float(widest @ (np.abs(program.objective) + abs(program.matrix).T @ np.abs(prices)))
    return math.fsum(parts) - _ROUNDING * (1 + summed + float(np.abs(prices * side).sum()))

"""HiGHS as it comes with SciPy: branch and bound, and the dual simplex for linear programs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from checkmate_solvers.engines.program import Outcome, Program
from checkmate_solvers.engines.silence import native_output_on_stderr

__all__ = ["LEAST_S", "Highs", "lowered"]

_FEASIBILITY = 1e-6
"""HiGHS's tolerance on integers and rows."""
_OPTIMALITY = 1e-7
"""HiGHS's tolerance on reduced costs: a column of range [0, 1] may gain this much more."""
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
        """Solve it."""
        options = {"time_limit": max(time_limit, LEAST_S), "mip_rel_gap": gap, "node_limit": self.nodes}
        with native_output_on_stderr():
            result = milp(
                program.objective,
                integrality=program.integral.astype(np.int64),
                bounds=Bounds(program.least, program.most),
                constraints=LinearConstraint(program.matrix, program.lower, program.upper),
                options=options,
            )
        if result.status == 2 and "infeasible" in result.message:  # a rejected model has this status, too
            return Outcome(values=None, bound=math.inf, finished=True)
        finished = result.status == 0
        dual = result.get("mip_dual_bound") if program.integral.any() else result.fun if finished else None
        bound = -math.inf if dual is None or not math.isfinite(dual) else lowered(float(dual), program)
        return Outcome(values=result.x, bound=bound, finished=finished)


def lowered(dual: float, program: Program) -> float:
    """The bound of an engine, less the most that its tolerances may have added to it."""
    priced = int(np.count_nonzero(program.objective))
    return dual - abs(dual) * _FEASIBILITY - _FEASIBILITY - priced * _OPTIMALITY

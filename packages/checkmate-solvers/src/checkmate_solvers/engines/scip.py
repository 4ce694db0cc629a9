"""SCIP as it comes with OR-Tools: branch and bound, in the extra ``ortools``.

OR-Tools has more engines. They are not offered: on the paper's program of 65 ops CP-SAT found nothing within
a minute, where SCIP found a schedule; and HiGHS comes with SciPy, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from checkmate.errors import MissingDistributionError, SolverError
from checkmate_solvers.engines.highs import LEAST_S, lowered
from checkmate_solvers.engines.program import Outcome, Program

__all__ = ["Scip", "require_ortools"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scip:
    """SCIP, one thread.

    Raises:
        MissingDistributionError: if OR-Tools is not installed.
    """

    def __post_init__(self) -> None:
        """Check for OR-Tools now, before there is a problem to solve."""
        require_ortools()

    def solve(self, program: Program, *, time_limit: float, gap: float) -> Outcome:
        """Solve it; without a solution there is no bound, unless SCIP proves that there is none.

        Raises:
            SolverError: if SCIP rejects the program, or fails.
        """
        from ortools.linear_solver.python import model_builder_helper as mb

        model: Any = mb.ModelBuilderHelper()  # its stubs know no shapes
        solver: Any = mb.ModelSolverHelper("scip")
        p, statuses = program, mb.SolveStatus
        matrix = csr_matrix(p.matrix)
        model.fill_model_from_sparse_data(p.least, p.most, p.objective, p.lower, p.upper, matrix)
        for column in np.flatnonzero(p.integral).tolist():
            model.set_var_integrality(column, True)
        solver.set_time_limit_in_seconds(max(time_limit, LEAST_S))
        solver.set_solver_specific_parameters(f"limits/gap = {gap}")
        solver.solve(model)
        status = solver.status()
        if status == statuses.INFEASIBLE:
            return Outcome(values=None, bound=math.inf, finished=True)
        if status == statuses.NOT_SOLVED:
            return Outcome(values=None, bound=-math.inf, finished=False)
        if status not in (statuses.OPTIMAL, statuses.FEASIBLE):
            raise SolverError(f"SCIP failed: {solver.status_string() or status.name}")
        return Outcome(
            values=solver.variable_values(),
            bound=lowered(solver.best_objective_bound(), p),
            finished=status == statuses.OPTIMAL,
        )


def require_ortools() -> None:
    """Raise MissingDistributionError unless OR-Tools is installed."""
    if find_spec("ortools") is None:
        raise MissingDistributionError(
            "OR-Tools is not installed: it comes with the extra 'ortools' of checkmate-solvers"
        )

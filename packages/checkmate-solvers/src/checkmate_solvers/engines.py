"""The engines that solve mixed-integer linear programs: HiGHS, which comes with SciPy, and SCIP.

SCIP comes with OR-Tools, in the extra ``ortools``. OR-Tools has more engines. They are not offered: on the
paper's program of 65 ops CP-SAT found nothing within a minute, where SCIP found a schedule; and HiGHS comes
with SciPy, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_matrix

from checkmate.errors import MissingDistributionError, SolverError
from checkmate_solvers.milp import Milp, Outcome

__all__ = ["Highs", "Scip", "native_output_on_stderr", "require_ortools"]

_LEAST_S = 0.05
"""Seconds: the least time limit that an engine gets."""
_FEASIBILITY = 1e-6
"""HiGHS's tolerance on integers and rows."""
_OPTIMALITY = 1e-7
"""HiGHS's tolerance on reduced costs: a column of range [0, 1] may gain this much more."""
_lock = threading.Lock()
_users = 0  # threads inside of native_output_on_stderr
_saved = -1  # a copy of file descriptor 1, while it points to standard error


@dataclass(frozen=True, slots=True, kw_only=True)
class Highs:
    """HiGHS as it comes with SciPy, on one thread.

    Attributes:
        nodes: the most branch-and-bound nodes; None = limited by time alone.
    """

    nodes: int | None = None

    def solve(self, program: Milp, *, time_limit: float, gap: float) -> Outcome:
        """Solve the program by branch and bound, or by the dual simplex if no column has to be whole."""
        options = {"time_limit": max(time_limit, _LEAST_S), "mip_rel_gap": gap, "node_limit": self.nodes}
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
        bound = -math.inf if dual is None or not math.isfinite(dual) else _lowered(float(dual), program)
        return Outcome(values=result.x, bound=bound, finished=finished)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scip:
    """SCIP as it comes with OR-Tools, on one thread.

    Raises:
        MissingDistributionError: if OR-Tools is not installed.
    """

    def __post_init__(self) -> None:
        """Check for OR-Tools now, before there is a problem to solve."""
        require_ortools()

    def solve(self, program: Milp, *, time_limit: float, gap: float) -> Outcome:
        """Solve the program. Without a solution the only bound is a proof that there is none.

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
        solver.set_time_limit_in_seconds(max(time_limit, _LEAST_S))
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
            bound=_lowered(solver.best_objective_bound(), p),
            finished=status == statuses.OPTIMAL,
        )


def require_ortools() -> None:
    """Raise MissingDistributionError unless OR-Tools is installed."""
    if find_spec("ortools") is None:
        raise MissingDistributionError(
            "OR-Tools is not installed: it comes with the extra 'ortools' of checkmate-solvers",
            name="OR-Tools",
        )


def _lowered(dual: float, program: Milp) -> float:
    """An engine's bound, less the most that its tolerances may have added to it."""
    priced = int(np.count_nonzero(program.objective))
    return dual - abs(dual) * _FEASIBILITY - _FEASIBILITY - priced * _OPTIMALITY


@contextlib.contextmanager
def native_output_on_stderr() -> Iterator[None]:
    """Redirect file descriptor 1 to standard error inside this block.

    HiGHS prints lines that no option turns off. C writes them below Python's ``sys.stdout``, so the
    descriptor itself must point elsewhere, and C's buffer must be emptied before it points back. The
    descriptor belongs to the whole process: output of other threads is redirected, too. Several threads may
    be inside at once; the last one out restores it. In a process without the two descriptors, such as a
    program without a console, the block changes nothing.
    """
    global _users, _saved
    with _lock:
        _users += 1
        if _users == 1:
            _flush()
            with contextlib.suppress(OSError):
                _saved = os.dup(1)
                os.dup2(2, 1)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0 and _saved >= 0:
                _flush()
                os.dup2(_saved, 1)
                os.close(_saved)
                _saved = -1


def _flush() -> None:
    """Empty C's buffers; not on Windows, where extensions share no C library."""
    if os.name == "posix":
        ctypes.CDLL(None).fflush(None)

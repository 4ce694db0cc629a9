"""The laws of solvers, for each solver of this distribution."""

from __future__ import annotations

from checkmate.testing import SolverConformance


class TestAuto(SolverConformance):
    solver_name = "auto"


class TestMinCut(SolverConformance):
    solver_name = "min-cut"


class TestCutMilp(SolverConformance):
    solver_name = "cut-milp"

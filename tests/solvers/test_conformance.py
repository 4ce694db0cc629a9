"""The laws of solvers, for each solver of this distribution."""

from __future__ import annotations

from checkmate.testing import SolverConformance


class TestAuto(SolverConformance):
    solver_name = "auto"
    examples = 40  # it searches on where nothing better is to be found; test_against_oracle asks more


class TestMinCut(SolverConformance):
    solver_name = "min-cut"
    examples = 40


class TestCutMilp(SolverConformance):
    solver_name = "cut-milp"
    examples = 40

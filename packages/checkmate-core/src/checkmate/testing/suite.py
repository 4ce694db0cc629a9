"""Conformance tests without a file: ``pytest --pyargs checkmate.testing.suite --checkmate-solver NAME``.

Also ``--checkmate-cost-model NAME`` and ``--checkmate-exporter NAME``; each may be given several times.
``--checkmate-examples N`` sets the number of examples of a check.
"""

from __future__ import annotations

import pytest

from checkmate.testing.conformance import CostModelConformance, ExporterConformance, SolverConformance

__all__ = ["TestCostModel", "TestExporter", "TestSolver"]


class TestSolver(SolverConformance):
    """Every check of solvers, for each ``--checkmate-solver``."""

    @pytest.fixture(autouse=True)
    def _named(self, checkmate_solver: str) -> None:
        self.solver_name = checkmate_solver


class TestCostModel(CostModelConformance):
    """Every check of cost models, for each ``--checkmate-cost-model``."""

    @pytest.fixture(autouse=True)
    def _named(self, checkmate_cost_model: str) -> None:
        self.cost_model_name = checkmate_cost_model


class TestExporter(ExporterConformance):
    """Every check of exporters, for each ``--checkmate-exporter``."""

    @pytest.fixture(autouse=True)
    def _named(self, checkmate_exporter: str) -> None:
        self.exporter_name = checkmate_exporter

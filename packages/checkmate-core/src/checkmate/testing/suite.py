"""Conformance tests without a file.

``pytest -p checkmate.testing.plugin --pyargs checkmate.testing.suite --checkmate-solver NAME`` runs them; the
options, also for cost models, executors and exporters, may be given several times.
"""

from __future__ import annotations

import pytest

from checkmate.plugins import Trial
from checkmate.testing import (
    CostModelConformance,
    ExecutorConformance,
    ExporterConformance,
    SolverConformance,
)

__all__ = ["TestCostModel", "TestExecutor", "TestExporter", "TestSolver"]


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


class TestExecutor(ExecutorConformance):
    """Every check of executors, for each ``--checkmate-executor`` and each of its trials."""

    @pytest.fixture(autouse=True)
    def _named(self, _one_trial: None, checkmate_executor: tuple[str, Trial]) -> None:
        self.executor_name, self.trial = checkmate_executor


class TestExporter(ExporterConformance):
    """Every check of exporters, for each ``--checkmate-exporter``."""

    @pytest.fixture(autouse=True)
    def _named(self, checkmate_exporter: str) -> None:
        self.exporter_name = checkmate_exporter

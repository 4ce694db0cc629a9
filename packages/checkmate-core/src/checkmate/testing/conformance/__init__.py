"""The conformance kit: subclass, name the plugin or override one method, and pytest runs all its laws."""

from checkmate.testing.conformance.cost_model import CostModelConformance
from checkmate.testing.conformance.executor import ExecutorConformance
from checkmate.testing.conformance.exporter import ExporterConformance
from checkmate.testing.conformance.frontend import FrontendConformance
from checkmate.testing.conformance.solver import SolverConformance

__all__ = [
    "CostModelConformance",
    "ExecutorConformance",
    "ExporterConformance",
    "FrontendConformance",
    "SolverConformance",
]

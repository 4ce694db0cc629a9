"""Tools for tests of plugins: strategies, the oracle, conformance classes.

Needs the extra ``checkmate-core[testing]``. ``pytest -p checkmate.testing.plugin --pyargs
checkmate.testing.suite --checkmate-solver NAME`` checks an installed solver without a test file.
"""

from importlib import util

from checkmate.errors import MissingDistributionError, install_hint

for _needed in ("hypothesis", "pytest"):
    if util.find_spec(_needed) is None:
        raise MissingDistributionError(
            f"'checkmate.testing' needs {_needed}: {install_hint('checkmate-core[testing]')}"
        )

# ruff: noqa: E402 - only where they can be imported
from checkmate.testing.conformance.cost_model import CostModelConformance
from checkmate.testing.conformance.executor import ExecutorConformance
from checkmate.testing.conformance.exporter import ExporterConformance
from checkmate.testing.conformance.frontend import FrontendConformance
from checkmate.testing.conformance.solver import SolverConformance
from checkmate.testing.oracle import cheapest_schedule, optimum

__all__ = [
    "CostModelConformance",
    "ExecutorConformance",
    "ExporterConformance",
    "FrontendConformance",
    "SolverConformance",
    "cheapest_schedule",
    "optimum",
]

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

from checkmate.testing.conformance import (  # noqa: E402 - only where it can be imported
    CostModelConformance,
    ExecutorConformance,
    ExporterConformance,
    FrontendConformance,
    SolverConformance,
)
from checkmate.testing.oracle import cheapest_schedule, optimum  # noqa: E402

__all__ = [
    "CostModelConformance",
    "ExecutorConformance",
    "ExporterConformance",
    "FrontendConformance",
    "SolverConformance",
    "cheapest_schedule",
    "optimum",
]

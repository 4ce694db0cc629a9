"""The extra ``ortools``: solvers that need it check for it first, and name it where it is missing."""

from __future__ import annotations

from importlib.util import find_spec

from checkmate.errors import MissingDistributionError

__all__ = ["ORTOOLS", "require_ortools"]

ORTOOLS = ("checkmate-solvers[ortools]",)
"""The distribution to install, for :class:`checkmate.plugins.SolverSpec`."""


def require_ortools() -> None:
    """Return if OR-Tools is installed.

    Raises:
        MissingDistributionError: if it is not.
    """
    if find_spec("ortools") is None:
        raise MissingDistributionError(
            "OR-Tools is not installed: it comes with the extra 'ortools' of checkmate-solvers"
        )

"""The extra ``ortools``, which some solvers need."""

from __future__ import annotations

from importlib.util import find_spec

from checkmate.errors import MissingDistributionError

__all__ = ["require_ortools"]


def require_ortools() -> None:
    """Raise MissingDistributionError unless OR-Tools is installed."""
    if find_spec("ortools") is None:
        raise MissingDistributionError(
            "OR-Tools is not installed: it comes with the extra 'ortools' of checkmate-solvers"
        )

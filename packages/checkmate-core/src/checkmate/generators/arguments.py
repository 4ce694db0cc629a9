"""Checks of the counts that generators take."""

from __future__ import annotations

from checkmate.errors import GraphError

__all__ = ["check_counts"]


def check_counts(where: str, *, least: int = 1, **counts: object) -> None:
    """Raise GraphError unless each count is a whole number ≥ ``least``; it names generator and argument."""
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < least:
            raise GraphError(f"{where}: {name} is {count!r}, must be a whole number ≥ {least}")

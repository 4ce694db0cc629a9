"""The file of results, and the table that pages quote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from pages import conditions, table

__all__ = ["Failed", "Results", "Row", "markdown"]


class Failed(msgspec.Struct):
    """A fault that did harm.

    Attributes:
        about: what was done.
        harm: what went wrong.
    """

    about: str
    harm: str


class Row(msgspec.Struct):
    """A class of faults.

    Attributes:
        name: of the class.
        must: what must be true after each fault.
        tried: how many faults.
        failed: those that did harm.
        seconds: that all of them took.
    """

    name: str
    must: str
    tried: int
    failed: list[Failed]
    seconds: float


class Results(msgspec.Struct):
    """A run: where and when it was, and its rows."""

    sessions: list[dict[str, Any]]
    rows: list[Row]


def markdown(file: Path) -> str:
    """The table, and on what it was made."""
    results = msgspec.json.decode(file.read_bytes(), type=Results)
    rows = [(f"{row.name}: {row.must}", row.tried, len(row.failed)) for row in results.rows]
    total = ("all", sum(tried for _, tried, _ in rows), sum(failed for *_, failed in rows))
    head = ("fault: what must be true after it", "tried", "failed")
    return f"{table(head, [*rows, total])}\n\n{conditions(results.sessions)}"

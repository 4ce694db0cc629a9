"""The results file, and the table that a page quotes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from pages import conditions, table

__all__ = ["Failed", "Results", "Row", "markdown"]


class Failed(msgspec.Struct):
    """A fault that did harm.

    Attributes:
        about: the fault.
        harm: its harm.
    """

    about: str
    harm: str


class Row(msgspec.Struct):
    """A class of faults.

    Attributes:
        name: of the class.
        must: the condition that must hold after each fault.
        tried: the number of faults.
        failed: the faults that did harm.
        seconds: the time of all of them.
    """

    name: str
    must: str
    tried: int
    failed: list[Failed]
    seconds: float


class Results(msgspec.Struct):
    """A run: its conditions and its rows."""

    sessions: list[dict[str, Any]]
    rows: list[Row]


def markdown(file: Path) -> str:
    """The table, and the conditions of the run."""
    results = msgspec.json.decode(file.read_bytes(), type=Results)
    rows = [(f"{row.name}: {row.must}", row.tried, len(row.failed)) for row in results.rows]
    total = ("all", sum(tried for _, tried, _ in rows), sum(failed for *_, failed in rows))
    head = ("fault: condition that must hold after it", "tried", "failed")
    return f"{table(head, [*rows, total])}\n\n{conditions(results.sessions)}"

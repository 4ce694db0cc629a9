"""The machines on which the self-check ran: ``python -m checkmate_torch.selfcheck --output FILE``."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from pages import table

__all__ = ["markdown"]

_SHOWN = ("times", "largest")
"""Slices of release 0.1, whose rows are shown one by one."""


def markdown(folder: Path) -> str:
    """For each results file: the machine, a line for each slice, and the rows of some slices."""
    files = sorted(folder.glob("selfcheck-*.json"))
    return "\n\n".join(_of_machine(json.loads(file.read_text(encoding="utf-8"))) for file in files)


def _of_machine(found: dict[str, Any]) -> str:
    rows = found["rows"]
    slices = [(name, [row for row in rows if row["slice"] == name]) for name in _distinct(rows)]
    facts = ", ".join(f"{name} {value}" for name, value in found["machine"].items() if value)
    head = ("slice", "passed", "failed", "not checked", "answers")
    parts = [f"**{found['machine']['device']}**: {facts}.", table(head, [_line(*one) for one in slices])]
    if off := [row["facts"]["predicted"] / row["facts"]["peak"] - 1 for row in rows if _has_peak(row)]:
        parts.append(f"Predicted peaks differ from measured ones by {min(off):+.2%} to {max(off):+.2%}.")
    for name, own in slices:
        if name in _SHOWN:
            lines = [(row["check"], row["verdict"], row["text"]) for row in own if row["passed"] is not None]
            parts.append(table((name, "answer", ""), lines))
    return "\n\n".join(parts)


def _distinct(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["slice"] for row in rows))


def _has_peak(row: dict[str, Any]) -> bool:
    return row["slice"] == "truth" and row["passed"] is not None and "predicted" in row["facts"]


def _line(name: str, rows: list[dict[str, Any]]) -> tuple[str | int, ...]:
    counts = Counter(row["passed"] for row in rows)
    answers = Counter(row["verdict"] for row in rows)
    said = ", ".join(f"{n} {verdict}" for verdict, n in answers.items())
    return name, counts[True], counts[False], counts[None], said

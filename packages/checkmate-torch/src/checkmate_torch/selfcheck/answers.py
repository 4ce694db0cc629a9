"""Checks and their answers, which are printed as lines, counted in a table and written as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, NamedTuple

import torch

__all__ = ["FAILED", "LATE", "Answer", "Check", "Setup", "finite", "line_of", "table_of"]

FAILED = "failed"
LATE = "not run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Where the checks run.

    Attributes:
        device: where all networks run.
        reserve: bytes that libraries keep on the device beyond those that plans count.
    """

    device: torch.device
    reserve: int = 0

    @property
    def large(self) -> bool:
        """Whether to train the large networks, on a GPU."""
        return self.device.type == "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a check found: a row of the table.

    Attributes:
        passed: None = neither passed nor failed, for example because the check was not run.
        verdict: a word or two, which the table counts.
        text: numbers for the reader.
        facts: the same and more, for programs: bytes, seconds, differences.
        slice: the slice of the check; this and the next two are empty until the slice fills them in.
        check: the name of the check.
        seconds: duration of the check.
    """

    passed: bool | None
    verdict: str
    text: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    slice: str = ""
    check: str = ""
    seconds: float = 0.0


class Check(NamedTuple):
    """A check that has not run yet."""

    name: str
    run: Callable[[], Answer]


def finite(x: float) -> float | None:
    """The number; None for infinity and NaN, which JSON lacks."""
    return x if isfinite(x) else None


def line_of(row: Answer) -> str:
    """The row on one line."""
    return f"{row.slice:8}{row.check:60} {row.verdict}{': ' if row.text else ''}{row.text}"


def table_of(rows: Sequence[Answer]) -> str:
    """For each slice a line that counts its verdicts; then a line for each check that failed."""
    lines = []
    for name in dict.fromkeys(row.slice for row in rows):
        own = [row for row in rows if row.slice == name]
        passed, ran = sum(row.passed is True for row in own), sum(row.passed is not None for row in own)
        counts = ", ".join(f"{n} {verdict}" for verdict, n in Counter(row.verdict for row in own).items())
        seconds = sum(row.seconds for row in own)
        lines.append(f"{name:8}{passed:4} of {ran:3} passed in {seconds:4.0f} s: {counts}")
    return "\n".join(lines + [f"FAILED  {line_of(row)}" for row in rows if row.passed is False])

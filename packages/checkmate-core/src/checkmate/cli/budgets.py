"""Budgets on the command line: ``8GiB``, ``123456``, ``60%``, ``0.6``; or a list, or a range of shares."""

from __future__ import annotations

import re

from checkmate.errors import BudgetError
from checkmate.units import Budget

__all__ = ["budget_list", "budget_of"]

_SHARE = re.compile(r"\s*(\d*\.\d+|\d+\.)\s*")
_PERCENT = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*%\s*")
_MANY = 10_000


def budget_of(text: str) -> Budget:
    """A budget as typed: a number with a point is a share; other text is left to the parser of sizes.

    >>> budget_of("0.6"), budget_of("60%"), budget_of("8GiB")
    (0.6, '60%', '8GiB')
    """
    return float(text) if _SHARE.fullmatch(text) else text


def budget_list(text: str) -> list[Budget]:
    """Budgets separated by commas; ``start:stop:count`` means ``count`` evenly spaced shares.

    >>> budget_list("0.5:100%:3, 4GiB")
    [0.5, 0.75, 1.0, '4GiB']

    Raises:
        BudgetError: if a range can't be read, or a budget is missing between two commas.
    """
    budgets: list[Budget] = []
    for part in text.split(","):
        if not part.strip():
            raise BudgetError(f"budgets {text!r:.60}: a budget is missing; write 0.3:1.0:15 or 4GiB,60%,0.5")
        budgets += _shares(part) if ":" in part else [budget_of(part.strip())]
    return budgets


def _shares(text: str) -> list[Budget]:
    ends = text.split(":")
    start, stop = (_share(end) for end in ends[:2])
    count = int(ends[2]) if len(ends) == 3 and re.fullmatch(r"\s*[0-9]{1,9}\s*", ends[2]) else 0
    if start is None or stop is None or not 1 <= count <= _MANY:
        raise BudgetError(
            f"budgets {text!r:.60}: a range is start:stop:count, of shares and 1 to {_MANY}: write 0.3:1.0:15"
        )
    step = (stop - start) / max(count - 1, 1)
    return [start + k * step if k < count - 1 or k == 0 else stop for k in range(count)]


def _share(text: str) -> float | None:
    percent = _PERCENT.fullmatch(text)
    if percent:
        return float(percent[1]) / 100
    return float(text) if _SHARE.fullmatch(text) or re.fullmatch(r"\s*\d\s*", text) else None

"""Bytes as people write them: ``8GiB``, ``8G``, ``512 MB``, ``60%``; parsed exactly, never through floats.

Binary suffixes (KiB, MiB, …) are powers of 1024, decimal ones (kB, MB, …) powers of 1000, as in IEC 80000-13.
A single letter (K, M, G, …) is a power of 1024, as in Linux tools, container limits and batch queues.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from numbers import Integral, Real

from checkmate.errors import BudgetError
from checkmate.text.printable import format_bytes

__all__ = ["Budget", "format_bytes", "parse_budget", "parse_bytes"]

Budget = int | float | str
"""What a user may write for a budget: bytes, a fraction (float), ``"8GiB"`` or ``"60%"``."""

_FACTORS = {"": 1, "b": 1} | {
    prefix + suffix: base ** (power + 1)
    for power, prefix in enumerate("kmgtp")
    for suffix, base in (("", 1024), ("ib", 1024), ("b", 1000))
}
_NUMBER = r"\s*(\d{1,999}(?:\.\d{1,999})?|\.\d{1,999})\s*"  # at most 999 digits, so that parsing is fast
_SIZE = re.compile(rf"{_NUMBER}([a-zA-Z]*)\s*")
_PERCENT = re.compile(rf"{_NUMBER}%\s*")
_LARGEST_SHARE = 10
_LARGEST_SIZE = 2**63 - 1  # the judge counts bytes in int64
_UNCLEAR = 100
"""A text that is a bare number up to this one may be meant as a percentage or in another unit."""
_TINY = 4096
"""Largest peak of a toy step, in bytes: for it a budget of ``_UNCLEAR`` bytes may be meant."""
_ADVICE = "write bytes (8589934592), a size ('8GiB', '512 MB') or a share ('60%', 0.6)"


def parse_bytes(text: int | str) -> int:
    """Read an absolute, non-negative number of bytes; fractions of a byte are rounded down.

    >>> parse_bytes("1.5KiB"), parse_bytes("1.5k"), parse_bytes("2 MB"), parse_bytes(7)
    (1536, 1536, 2000000, 7)

    Raises:
        BudgetError: if the text can't be read, or the size is negative or more than 2^63 − 1 bytes.
    """
    return _size(text, "size")


def parse_budget(budget: Budget, whole: int) -> int:
    """Read a memory budget as bytes; shares are of ``whole``, the peak without recomputation.

    >>> parse_budget("60%", whole=1000), parse_budget(0.5, whole=1000), parse_budget("1KiB", whole=1000)
    (600, 500, 1024)

    Raises:
        BudgetError: if the budget can't be read, is not positive, or is a text such as ``"60"``, which may
            be meant as a percentage.
    """
    value = _share(budget, whole)
    if value is None:
        value = _size(budget, "budget")
    if value <= 0:
        raise BudgetError(f"budget {budget!r} is {value} bytes: a budget must be positive; {_ADVICE}")
    if value <= _UNCLEAR and whole > _TINY and isinstance(budget, str) and budget.strip()[-1].isdigit():
        number = budget.strip()
        raise BudgetError(
            f"budget {number}: {value} bytes? Write '{number}%' for a share, '{number}GiB' for a size, or "
            f"'{number}B' for bytes"
        )
    return value


def _size(given: object, name: str) -> int:
    if isinstance(given, bool) or not isinstance(given, Integral | str):
        raise BudgetError(f'{name} must be a number of bytes or a size such as "8GiB"; got {given!r:.60}')
    if isinstance(given, Integral):  # NumPy's included
        size = int(given)
    else:
        match = _SIZE.fullmatch(given)
        factor = _FACTORS.get(match[2].lower()) if match else None
        if match is None or factor is None:
            raise BudgetError(f"can't read {given!r:.40} as bytes: {_ADVICE}")
        size = int(Fraction(match[1]) * factor)
    if size > _LARGEST_SIZE:
        raise BudgetError(f"more than 2^63 - 1 bytes can't be counted: {_ADVICE}")
    if size < 0:
        raise BudgetError(f"{size} bytes: a number of bytes can't be negative")
    return size


def _share(budget: Budget, whole: int) -> int | None:
    """Bytes of a budget that is a share of ``whole``, or None if the budget is absolute.

    A float counts as the decimal number that it prints: 0.29 of 100 bytes are 29.
    """
    given: object = budget
    if isinstance(given, str):
        match = _PERCENT.fullmatch(given)
        if match is None:
            return None
        share: Fraction | float = Fraction(match[1]) / 100
    elif isinstance(given, Real) and not isinstance(given, Integral):
        share = Fraction(repr(float(given))) if math.isfinite(given) else math.inf
    else:
        return None
    if share > _LARGEST_SHARE:
        raise BudgetError(
            f"budget {budget!r:.40}: a float or percentage is a share of the plain step's peak, "
            f"at most {_LARGEST_SHARE:.0%}; for bytes pass an int"
        )
    return math.floor(share * whole)

"""What a loop whose steps vary must show: few plans, peaks within the budget, results of plain steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from steps.process import Row

__all__ = ["FIRST", "Run", "bounds", "fails", "row_of"]

FIRST = 3
"""Steps in which plans may be made whatever their sizes."""
_PLANNING_S = 60.0
_CLOSE = 1e-5
_SHARE_OFF = 1.02
"""A share is one of the plain peak as predicted, which may be off by this factor."""


class Run(Protocol):
    """A run of a loop, measured step by step.

    Attributes:
        peaks: of each step, in bytes.
        new_plans: the number of plans made in each step.
        seconds: of the processor, in each step.
    """

    peaks: list[int]
    new_plans: list[int]
    seconds: list[float]


def row_of(
    budget: int | str,
    plain: Run,
    ours: Run,
    *,
    difference: float,
    warned: Sequence[str],
    changes: Iterable[int],
) -> Row:
    """The row of a loop that ran plainly and within a budget, with what does not hold of it."""
    row: Row = {
        "budget": budget,
        "plain": plain.peaks,
        "bounds": bounds(budget, plain.peaks),
        "peaks": ours.peaks,
        "planned": [step for step, n in enumerate(ours.new_plans) if n],
        "planning_s": max(0.0, sum(ours.seconds) - sum(plain.seconds)),
        "difference": difference,
        "warned": warned,
    }
    return row | {"fails": fails(row, changes)}


def fails(row: Row, changes: Iterable[int] = ()) -> list[str]:
    """What does not hold.

    Args:
        row: ``plain``, ``peaks`` and ``bounds`` of each step in bytes; ``planned``, the steps with new plans;
            ``planning_s``; ``difference`` of the results.
        changes: later steps that may have a new plan; besides those that need more than all before.
    """
    plain, peaks = row["plain"], row["peaks"]
    new = [k for k in row["planned"] if k >= FIRST and plain[k] <= max(plain[:k])]
    new = [k for k in new if k not in changes]
    over = [k for k in range(1, len(peaks)) if peaks[k] > row["bounds"][k]]
    said = []
    if new:
        said.append(f"new plans in {len(new)} later steps")
    if row["planning_s"] > _PLANNING_S:
        said.append(f"{row['planning_s']:.0f} s of planning")
    if peaks[0] > plain[0]:
        said.append(f"first step {peaks[0] / plain[0] - 1:+.0%} over plain")
    if over:
        worst = max(peaks[k] / row["bounds"][k] for k in over)
        said.append(f"{len(over)} steps over the budget, {worst - 1:+.1%}")
    if row["difference"] > _CLOSE:
        said.append(f"results differ by {row['difference']:.0e}")
    return said


def bounds(budget: int | str, plain: Sequence[int]) -> list[int]:
    """The budget of each step in bytes; a share is one of the largest plain peak so far."""
    if isinstance(budget, int):
        return [budget] * len(plain)
    share = float(budget.rstrip("%")) / 100 * _SHARE_OFF
    return [int(share * max(plain[: k + 1])) for k in range(len(plain))]

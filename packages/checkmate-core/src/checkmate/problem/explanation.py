"""The benefit of each recomputation: op ↦ times computed, bytes saved, extra cost, and the reason.

Between two stays (:mod:`checkmate.problem.reading`) a tensor is *away*. An absence costs the run that
recomputes the tensor for its next reader; it saves the tensor's bytes times the time away.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from checkmate.problem.reading import Reading
from checkmate.simulate import Timeline
from checkmate.text.markup import figure, table
from checkmate.text.printable import clipped, cost_text
from checkmate.units import format_bytes

__all__ = ["Explanation", "Recomputed", "explanation"]

_ROWS = 20
_NAME = 44
_NOTHING = "nothing is recomputed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """One op that runs more than once, and why.

    Attributes:
        index: the op's index.
        op: its name.
        module: the part of the model that it comes from, as far as the framework knows; else empty.
        again: number of runs after the first.
        paid: extra cost: the cost of the runs after the first, in the graph's unit.
        size: bytes saved: the largest sum of its freed outputs that one run recomputed.
        average: bytes saved on average over the whole step.
        saved: bytes of its outputs that are freed at the peak.
        without: peak in bytes if its outputs had been kept instead, during the worst of their absences; 0
            without absences.
        reason: what recomputing the op achieves, in words.
    """

    index: int
    op: str
    module: str
    again: int
    paid: float
    size: int
    average: float
    saved: int
    without: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Explanation:
    """The recomputed ops, the most expensive first; prints as a table, and in notebooks as HTML.

    Attributes:
        rows: one for each op that runs more than once.
        cost_unit: the unit of ``paid``.
    """

    HEAD = ("recomputed", "times", "bytes saved", "extra cost", "why")
    """Titles of the columns of :meth:`cells`."""

    rows: tuple[Recomputed, ...]
    cost_unit: str

    def cells(self, rows: int = _ROWS) -> Iterator[tuple[str, str, str, str, str]]:
        """The table as texts.

        Args:
            rows: the number of rows, the most expensive ops first; one more sums up the others.
        """
        for row in self.rows[:rows]:
            name = clipped(f"{row.op}  {row.module}" if row.module else row.op, _NAME)
            paid = cost_text(row.paid, self.cost_unit)
            yield name, f"{row.again + 1}×", format_bytes(row.size), paid, row.reason
        if rest := self.rows[rows:]:
            paid = cost_text(sum(row.paid for row in rest), self.cost_unit)
            yield f"… and {len(rest)} more", "", "", paid, ""

    def text(self, rows: int = _ROWS) -> str:
        """The table as lines of text.

        Args:
            rows: as in :meth:`cells`.
        """
        if not self.rows:
            return _NOTHING
        lines = (
            f"{name:<{_NAME}} {times:>5} {size:>11} {paid:>10}  {why}".rstrip()
            for name, times, size, paid, why in (self.HEAD, *self.cells(rows))
        )
        return "\n".join(lines)

    def facts(self) -> list[dict[str, Any]]:
        """All rows as plain values, for JSON."""
        return [
            {"op": row.index, "name": row.op, "again": row.again, "paid": row.paid, "size": row.size}
            for row in self.rows
        ]

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The same table for notebooks."""
        if not self.rows:
            return figure(_NOTHING)
        return figure("Recomputed ops", table(self.cells(), self.HEAD, numbers=range(1, 4)))


def explanation(
    reading: Reading | Timeline, budget: int | None = None, modules: Sequence[str] = ()
) -> Explanation:
    """The ops that a judged schedule recomputes and why, the most expensive first.

    ``modules`` names the part of the model that each op of the graph comes from. Without a budget in bytes,
    reasons don't mention a budget.
    """
    reading = reading if isinstance(reading, Reading) else Reading(reading)
    timeline, away, memory = reading.timeline, _absences(reading), _Highest(reading.memory)
    rows = [
        _recomputed(reading, memory, v, away.get(v, []), budget, modules[v] if modules else "")
        for v in np.flatnonzero(timeline.runs > 1).tolist()
    ]
    rows.sort(key=lambda row: (-row.paid, -row.average, row.index))
    return Explanation(rows=tuple(rows), cost_unit=timeline.graph.cost_unit)


class _Absence(NamedTuple):
    """A tensor that is away from run ``first`` until run ``back``, which recomputes it for a later reader."""

    size: int
    first: int
    back: int
    byte_time: float


def _absences(reading: Reading) -> dict[int, list[_Absence]]:
    """The absences of each op's outputs."""
    graph, starts = reading.timeline.graph, reading.starts
    ends: dict[int, int] = {}
    away: dict[int, list[_Absence]] = {}
    for t, first, end, used in zip(*(column.tolist() for column in reading.stays), strict=True):
        left = ends.get(t, first)
        if left < first and used:
            size = int(graph.sizes[t])
            absence = _Absence(size, left, first, size * float(starts[first] - starts[left]))
            away.setdefault(int(graph.producer[t]), []).append(absence)
        ends[t] = end
    return away


def _recomputed(
    reading: Reading, memory: _Highest, op: int, away: list[_Absence], budget: int | None, module: str
) -> Recomputed:
    graph, peak, total = reading.timeline.graph, reading.peak_run, float(reading.starts[-1])
    again = int(reading.timeline.runs[op]) - 1
    by_return: dict[int, int] = {}
    for a in away:
        by_return[a.back] = by_return.get(a.back, 0) + a.size
    saved = sum(a.size for a in away if a.first <= peak < a.back)
    without = max((a.size + memory.between(a.first, a.back) for a in away), default=0)
    return Recomputed(
        index=op,
        op=graph.ops[op].name,
        module=module,
        again=again,
        paid=again * graph.ops[op].cost,
        size=max(by_return.values(), default=0),
        average=sum(a.byte_time for a in away) / total if total else 0.0,
        saved=saved,
        without=without,
        reason=_reason(saved, without, budget),
    )


def _reason(saved: int, without: int, budget: int | None) -> str:
    if budget is not None and without > budget:
        return f"kept, the peak would be {format_bytes(without)}: over the budget"
    if saved:
        return f"{format_bytes(saved)} less at the peak"
    return "makes room together with others" if without else "saved nothing: no later op needed it again"


class _Highest:
    """Finds the largest number of any range, from a table of windows of doubling length."""

    def __init__(self, numbers: npt.NDArray[np.int64]) -> None:
        self._windows = [numbers]  # [i][k] = the largest of numbers[k : k + 2**i]
        while len(self._windows[-1]) > 1 << (len(self._windows) - 1):
            half = 1 << (len(self._windows) - 1)
            self._windows.append(np.maximum(self._windows[-1][:-half], self._windows[-1][half:]))

    def between(self, first: int, end: int) -> int:
        """The largest of the numbers ``first … end − 1``."""
        level = (end - first).bit_length() - 1
        window = self._windows[level]
        return int(max(window[first], window[end - (1 << level)]))

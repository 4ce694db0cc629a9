"""The benefit of each recomputation: op ↦ times computed, bytes saved, extra cost, and the reason.

Between two stays (:mod:`checkmate.problem.reading`) a tensor is *away*. An absence costs the run that
recomputes the tensor for its next reader; it saves the tensor's bytes times the time away. The pieces of an
op (:mod:`checkmate.problem.pieces`) are one op, which makes the outputs of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from checkmate.model.graph import DFGraph
from checkmate.problem.pieces import WHOLE, Pieces
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
        index: the op's index; of an op in pieces, that of the first one.
        op: its name.
        module: the part of the model that it comes from, as far as the framework knows; else empty.
        pieces: number of its pieces; 1 = it is whole.
        times: computes of the op; of an op in pieces, of each piece on average.
        again: number of runs after the first, of all pieces together.
        paid: extra cost: the cost of the runs after the first, in the graph's unit.
        size: bytes saved: the most bytes of its outputs that were freed at one time and recomputed later.
        average: bytes saved on average over the whole step.
        saved: bytes of its outputs that are freed at the peak.
        without: peak in bytes if its outputs had been kept instead, during the worst of their absences; 0
            without absences.
        reason: what recomputing the op achieves, in words.
    """

    index: int
    op: str
    module: str
    pieces: int = 1
    times: float
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
        rows: one for each op that runs more than once; the pieces of an op have one together.
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
            pieces = f"in {row.pieces} pieces" if row.pieces > 1 else ""
            name = clipped("  ".join(filter(None, (row.op, pieces, row.module))), _NAME)
            paid = cost_text(row.paid, self.cost_unit)
            yield name, f"{row.times:.4g}×", format_bytes(row.size), paid, row.reason
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
    reading: Reading | Timeline,
    budget: int | None = None,
    modules: Sequence[str] = (),
    pieces: Pieces = WHOLE,
) -> Explanation:
    """The ops that a judged schedule recomputes and why, the most expensive first.

    ``modules`` names the part of the model that each op of the graph comes from. Without a budget in bytes,
    reasons don't mention a budget.
    """
    reading = reading if isinstance(reading, Reading) else Reading(reading)
    timeline, away, memory = reading.timeline, _absences(reading), _Highest(reading.memory)
    rows = [
        _recomputed(reading, memory, ops, _together(timeline.graph, ops, away), budget, modules, pieces)
        for ops in pieces.whole_ops(timeline.graph)
        if (timeline.runs[[*ops]] > 1).any()
    ]
    rows.sort(key=lambda row: (-row.paid, -row.average, row.index))
    return Explanation(rows=tuple(rows), cost_unit=timeline.graph.cost_unit)


class _Absence(NamedTuple):
    """A tensor that is away from run ``first`` until run ``back``, which recomputes it for a later reader."""

    tensor: int
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
            absence = _Absence(t, size, left, first, size * float(starts[first] - starts[left]))
            away.setdefault(int(graph.producer[t]), []).append(absence)
        ends[t] = end
    return away


def _together(graph: DFGraph, ops: Sequence[int], away: Mapping[int, list[_Absence]]) -> list[_Absence]:
    """The absences of the outputs of some ops, without those that the next piece writes over."""
    over = {t for v in ops for t in graph.ops[v].reuses}
    return [a for v in ops for a in away.get(v, ()) if a.tensor not in over or len(ops) == 1]


def _levels(away: Iterable[_Absence]) -> Iterator[tuple[int, int, int]]:
    """The bytes that are away: from a run, until a run, and how many, where a tensor is."""
    changes = sorted([(a.first, 1, a.size) for a in away] + [(a.back, -1, -a.size) for a in away])
    tensors = size = 0
    for (start, one, more), (end, _, _) in pairwise(changes):
        tensors, size = tensors + one, size + more
        if tensors and start < end:
            yield start, end, size


def _recomputed(
    reading: Reading,
    memory: _Highest,
    ops: Sequence[int],
    away: Sequence[_Absence],
    budget: int | None,
    modules: Sequence[str],
    pieces: Pieces,
) -> Recomputed:
    timeline, peak, total = reading.timeline, reading.peak_run, float(reading.starts[-1])
    again = [max(0, int(timeline.runs[v]) - 1) for v in ops]
    levels, piece = [*_levels(away)], pieces.piece(ops[0])
    saved = sum(size for start, end, size in levels if start <= peak < end)
    without = max((size + memory.between(start, end) for start, end, size in levels), default=0)
    return Recomputed(
        index=ops[0],
        op=timeline.graph.ops[ops[0]].name if piece is None else piece.name,
        module=modules[ops[0]] if modules else "",
        pieces=1 if piece is None else piece.count,
        times=float(timeline.runs[[*ops]].mean()),
        again=sum(again),
        paid=sum(more * timeline.graph.ops[v].cost for v, more in zip(ops, again, strict=True)),
        size=max((size for _, _, size in levels), default=0),
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

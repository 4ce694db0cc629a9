"""The benefit of each recomputation: op ↦ times computed, bytes saved, extra cost, and the reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from checkmate.problem.solution import Solution
from checkmate.report.reading import Reading
from checkmate.text.markup import figure, table
from checkmate.text.printable import clipped, cost_text
from checkmate.units import format_bytes

__all__ = ["Explanation", "Recomputed", "explain"]

_ROWS = 20
_NAME = 44
_HEAD = ("recomputed", "times", "bytes saved", "extra cost", "why")
_NOTHING = "nothing is recomputed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """One op that runs more than once, and why.

    Attributes:
        op: its name.
        module: the part of the model that it comes from, as far as the framework knows; else empty.
        again: number of runs after the first.
        size: bytes saved: the most of its outputs that were freed at one time and recomputed.
        saved: bytes of its outputs that are freed at the peak.
        paid: extra cost: that of the runs after the first, in the graph's cost unit.
        without: peak in bytes if its outputs had been kept instead, during the worst of their absences.
        reason: that in words.
    """

    op: str
    module: str
    again: int
    size: int
    saved: int
    paid: float
    without: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Explanation:
    """The recomputed ops, the most expensive first; prints as a table.

    Attributes:
        rows: one for each op that runs more than once.
        cost_unit: of ``paid``.
    """

    rows: tuple[Recomputed, ...]
    cost_unit: str

    def __str__(self) -> str:
        """The table; of many rows the most expensive."""
        if not self.rows:
            return _NOTHING
        lines = [_HEAD, *self._cells()]
        texts = [
            f"{name:<{_NAME}} {times:>5} {size:>11} {paid:>10}  {why}"
            for name, times, size, paid, why in lines
        ]
        return "\n".join([*texts, *self._rest()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The same table for notebooks."""
        if not self.rows:
            return figure(_NOTHING)
        rows = [*self._cells(), *((rest,) for rest in self._rest())]
        return figure("Recomputed ops", table(rows, _HEAD, numbers=range(1, 4)))

    def _cells(self) -> Iterator[tuple[str, str, str, str, str]]:
        for row in self.rows[:_ROWS]:
            name = f"{row.op}  {row.module}" if row.module else row.op
            paid = cost_text(row.paid, self.cost_unit)
            yield clipped(name, _NAME), f"{row.again + 1}×", format_bytes(row.size), paid, row.reason

    def _rest(self) -> Iterator[str]:
        """The rows that are left out, in one."""
        if rest := self.rows[_ROWS:]:
            paid = cost_text(sum(row.paid for row in rest), self.cost_unit)
            yield f"… and {len(rest)} more, extra cost {paid}"


def explain(solution: Solution, modules: Sequence[str] = ()) -> Explanation:
    """The ops that a solution recomputes and why, the most expensive first.

    Args:
        solution: with a schedule.
        modules: the part of the model that each op of the graph comes from.

    Raises:
        ValueError: if the solution has no schedule.
    """
    timeline = solution.timeline
    if timeline is None:
        raise ValueError(f"there is no schedule to explain: {solution!r}")
    graph, budget = timeline.graph, solution.problem.budget
    rows = [
        Recomputed(
            op=graph.ops[r.op].name,
            module=modules[r.op] if modules else "",
            again=r.again,
            size=r.size,
            saved=r.at_peak,
            paid=r.paid,
            without=r.without,
            reason=_reason(r.at_peak, r.without, budget),
        )
        for r in Reading(timeline).recomputations()
    ]
    return Explanation(rows=tuple(rows), cost_unit=graph.cost_unit)


def _reason(saved: int, without: int, budget: int) -> str:
    if without > budget:
        return f"kept, the peak would be {format_bytes(without)}: over the budget"
    if saved:
        return f"{format_bytes(saved)} less at the peak"
    return "read by another recomputed op" if not without else "makes room together with others"

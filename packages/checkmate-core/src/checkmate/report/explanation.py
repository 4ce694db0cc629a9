"""The benefit of each recomputation: op ↦ times computed, bytes saved, extra cost, and the reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from checkmate.report.reading import Reading
from checkmate.solution import Solution
from checkmate.text import clipped, cost_text
from checkmate.units import format_bytes

__all__ = ["Explanation", "Recomputed", "explain"]

_ROWS = 20
_NAME = 44


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
        return "\n".join(self._lines())

    __repr__ = __str__

    def _lines(self) -> Iterator[str]:
        if not self.rows:
            yield "nothing is recomputed"
            return
        yield f"{'recomputed':<{_NAME}} {'times':>5} {'bytes saved':>11} {'extra cost':>10}  why"
        for row in self.rows[:_ROWS]:
            name = f"{row.op}  {row.module}" if row.module else row.op
            yield (
                f"{clipped(name, _NAME):<{_NAME}} {row.again + 1:>4}× {format_bytes(row.size):>11} "
                f"{cost_text(row.paid, self.cost_unit):>10}  {row.reason}"
            )
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

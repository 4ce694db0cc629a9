"""The bytes of a peak by kind: peak = Σ over kinds of bytes held while the op at the peak runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from checkmate.problem.problem import keep_all_peak
from checkmate.problem.solution import Solution
from checkmate.report.account import Account, Kind
from checkmate.text.markup import figure, table
from checkmate.text.printable import clipped
from checkmate.units import format_bytes

__all__ = ["PeakReport", "peak_report"]

_LARGEST = 5
_NAME = 44


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PeakReport:
    """The bytes of a step's peak, by kind and tensor; prints as a table.

    Attributes:
        budget: bytes.
        peak: predicted, in bytes.
        measured: peak measured by a meter, in bytes; None without a measurement.
        plain_peak: predicted peak of the step without recomputation, in bytes.
        overhead: extra cost of the recomputations, as a share of the plain step's cost.
        op: name of the op that runs at the peak.
        by_kind: bytes of each kind at the peak, largest first; together they are ``peak``.
        largest: name, kind and bytes of the largest tensors held at the peak, largest first.
        status: of the schedule.
        remarks: on the prediction, a sentence each.
    """

    budget: int
    peak: int
    measured: int | None
    plain_peak: int
    overhead: float
    op: str
    by_kind: dict[Kind, int]
    largest: tuple[tuple[str, Kind, int], ...]
    status: str
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The table."""
        return "\n".join(_line(*row) for row in self._rows())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The same table for notebooks."""
        return figure("Bytes of a training step", table(self._rows(), numbers=[1]))

    def _rows(self) -> Iterator[tuple[str, str, str]]:
        """Name, number and remark; a heading has only a name."""
        yield "budget", format_bytes(self.budget), ""
        yield "predicted peak", format_bytes(self.peak), f"{_share(self.peak, self.budget)} of the budget"
        if self.measured is not None:
            share = _share(self.measured, self.peak)
            yield "measured peak", format_bytes(self.measured), f"{share} of the predicted"
        for remark in self.remarks:
            yield "", "", remark
        share = _share(self.peak, self.plain_peak)
        yield "plain step's peak", format_bytes(self.plain_peak), f"this is {share} of it"
        yield "extra cost", f"{self.overhead:.1%}", self.status
        yield f"at the peak, while {clipped(self.op, _NAME)!r} runs", "", ""
        for kind, size in self.by_kind.items():
            yield kind, format_bytes(size), _share(size, self.peak)
        yield "largest tensors then", "", ""
        for name, kind, size in self.largest:
            yield clipped(name, _NAME), format_bytes(size), kind


def peak_report(
    solution: Solution,
    account: Account,
    *,
    measured: int | None = None,
    plain_peak: int | None = None,
    remarks: Sequence[str] = (),
) -> PeakReport:
    """The bytes of a solution's peak, by kind and tensor.

    Args:
        solution: with a schedule.
        account: the kind of every byte.
        measured: peak of a step, in bytes.
        plain_peak: peak without recomputation, in bytes; None = that of the base order.
        remarks: on the prediction, a sentence each.

    Raises:
        ValueError: if the solution has no schedule.
    """
    timeline = solution.timeline
    if timeline is None:
        raise ValueError(f"there is no schedule to report on: {solution!r}")
    graph, op = timeline.graph, timeline.peak_op
    held = account.held_at_peak(timeline)
    largest = sorted(held, key=lambda t: -graph.tensors[t].size)[:_LARGEST]
    return PeakReport(
        budget=solution.problem.budget,
        peak=timeline.peak,
        measured=measured,
        plain_peak=keep_all_peak(graph) if plain_peak is None else plain_peak,
        overhead=timeline.overhead,
        op=graph.ops[op].name if op is not None else "",
        by_kind=account.at_peak(timeline),
        largest=tuple((graph.tensors[t].name, account.kinds[t], graph.tensors[t].size) for t in largest),
        status=str(solution.status),
        remarks=tuple(remarks),
    )


def _line(name: str, number: str, remark: str) -> str:
    if not number:
        return name or f"  {remark}"
    return f"  {name:<{_NAME}} {number:>11}  {remark}".rstrip()


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "0%"

"""Reports of planned steps: the bytes at a peak by kind, the recomputed ops, and files of any exporter."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from checkmate.errors import NoPlanError
from checkmate.plugins import EXPORTERS, exporter_for
from checkmate.problem.explanation import Explanation, explanation
from checkmate.problem.problem import keep_all_peak
from checkmate.problem.solution import Solution
from checkmate.report.account import Account, Kind
from checkmate.report.dot import GraphPicture
from checkmate.report.html import HtmlReport, html_report
from checkmate.report.perfetto import PerfettoTrace
from checkmate.text.markup import figure, table
from checkmate.text.printable import clipped
from checkmate.units import format_bytes

__all__ = ["HasPlans", "Measured", "PeakReport", "PlanLike", "explain", "peak_of", "peak_report"]

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
        overhead: extra cost, as a share of the cost of the step without recomputation and without pieces.
        op: name of the op that runs at the peak.
        by_kind: bytes of each kind at the peak, largest first; together they are ``peak``.
        largest: name, kind and bytes of the largest tensors held at the peak, largest first.
        status: the status of the schedule; of a graph in pieces, among the schedules of that graph.
        remarks: remarks on the prediction, a sentence each.
        in_pieces: whether ops run in pieces.
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
    in_pieces: bool = False

    def __str__(self) -> str:
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
        status = f"{self.status} for these pieces" if self.in_pieces else self.status
        yield "extra cost", f"{self.overhead:.1%}", status
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
    """The bytes of a solution's peak, by kind and tensor; other arguments become attributes of the report.

    The default of ``plain_peak`` is the peak of the base order.

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
        overhead=solution.overhead,
        op=graph.ops[op].name if op is not None else "",
        by_kind=account.at_peak(timeline),
        largest=tuple((graph.tensors[t].name, account.kinds[t], graph.tensors[t].size) for t in largest),
        status=str(solution.status),
        remarks=tuple(remarks),
        in_pieces=bool(solution.pieces),
    )


def explain(solution: Solution, modules: Sequence[str] = ()) -> Explanation:
    """The ops that a solution recomputes and why, the most expensive first.

    ``modules`` names the part of the model that each op of the graph comes from.

    Raises:
        ValueError: if the solution has no schedule.
    """
    if solution.timeline is None:
        raise ValueError(f"there is no schedule to explain: {solution!r}")
    return explanation(solution.timeline, solution.problem.budget, modules, solution.pieces)


class PlanLike(Protocol):
    """The attributes of a plan that reports read."""

    @property
    def solution(self) -> Solution:
        """The judged schedule."""

    @property
    def account(self) -> Account:
        """The use of each byte."""

    @property
    def modules(self) -> Sequence[str]:
        """The part of the model that each op of the graph comes from; empty if unknown."""

    @property
    def plain_peak(self) -> int | None:
        """Predicted peak of the plain program, in bytes; None where that is the graph's base order."""

    @property
    def remarks(self) -> Sequence[str]:
        """Further facts about the predicted peak, a sentence each."""


class Measured(Protocol):
    """A memory meter that measured one step."""

    @property
    def peak(self) -> int:
        """The largest number of bytes held at once."""


def peak_of(measured: Measured | None) -> int | None:
    """The peak that a meter measured; None without a meter."""
    peak: int | None = getattr(measured, "peak", None)
    if measured is not None and peak is None:
        raise TypeError(
            f"report takes a memory meter, got {measured!r:.80}: run one step inside of "
            "'with memory_meter(…) as meter:', then report(meter). A plan is chosen by plan="
        )
    return peak


_Plan = TypeVar("_Plan", bound=PlanLike)


class HasPlans(Generic[_Plan]):
    """An object with :attr:`plans` that can be reported, explained and exported.

    ``plan=`` is the index of a plan, by default the last. Before the first call with gradients there are no
    plans, and methods raise :class:`~checkmate.NoPlanError`.
    """

    @property
    def plans(self) -> tuple[_Plan, ...]:
        """The plans so far, one for each kind of inputs that was trained with."""
        raise NotImplementedError

    def __repr__(self) -> str:
        """The last plan in a line: its budget, predicted peak and extra cost."""
        name = type(self).__name__
        if not self.plans:
            return f"<{name}: nothing planned yet, the first step with gradients plans>"
        plan = self.plans[-1]
        timeline, budget = plan.solution.timeline, plan.solution.problem.budget
        found = "no schedule"
        if timeline is not None:
            found = f"predicted peak {format_bytes(timeline.peak)}, extra cost {plan.solution.overhead:.1%}"
        last = f"the last of {len(self.plans)} plans: " if len(self.plans) > 1 else ""
        return f"<{name}: {last}budget {format_bytes(budget)}, {found}>"

    def report(self, measured: Measured | None = None, *, plan: int = -1) -> PeakReport:
        """The use of every byte at the step's peak; prints as a table.

        Args:
            measured: a meter around one step; its peak is printed beside the predicted one.
            plan: which of :attr:`plans`; default the last.

        Raises:
            NoPlanError: before the first call with gradients.
            TypeError: if this is no meter.
        """
        chosen = self._plan(plan)
        return peak_report(
            chosen.solution,
            chosen.account,
            measured=peak_of(measured),
            plain_peak=chosen.plain_peak,
            remarks=chosen.remarks,
        )

    def explain(self, *, plan: int = -1) -> Explanation:
        """Each recomputed op, the most expensive first: times computed, bytes saved, extra seconds, and why.

        Prints as a table.

        Args:
            plan: which of :attr:`plans`; default the last.
        """
        chosen = self._plan(plan)
        return explain(chosen.solution, chosen.modules)

    def save_report(
        self, path: str | os.PathLike[str], measured: Measured | None = None, *, plan: int = -1
    ) -> Path:
        """Write the plan with the exporter of the file's suffix; return the path.

        ``.html`` is a self-contained page, ``.perfetto.json`` a trace; ``checkmate plugins`` lists them all.

        Args:
            path: of the file to write.
            measured: as in :meth:`report`; a page shows its peak.
            plan: which of :attr:`plans`; default the last.

        Raises:
            PluginError: if no exporter has this suffix.
            TypeError: if ``measured`` is no meter.
        """
        chosen, file, peak = self._plan(plan), Path(path), peak_of(measured)
        solution = chosen.solution
        if solution.timeline is None:
            raise NoPlanError("this plan has no schedule")
        exporter = EXPORTERS.load(exporter_for(path).name)
        if isinstance(exporter, HtmlReport):
            html_report(solution, file, plain_peak=chosen.plain_peak, measured=peak)
        elif isinstance(exporter, GraphPicture | PerfettoTrace):
            exporter.write(solution.timeline, file, budget=solution.problem.budget, pieces=solution.pieces)
        else:
            exporter.write(solution.timeline, file, budget=solution.problem.budget)
        return file

    def _plan(self, index: int) -> _Plan:
        plans = self.plans
        if not plans:
            raise NoPlanError("nothing planned yet: run one training step first")
        try:
            return plans[index]
        except IndexError:
            raise NoPlanError(
                f"there is no plan {index}, {len(plans)} so far: each new kind of inputs adds one"
            ) from None


def _line(name: str, number: str, remark: str) -> str:
    if not number:
        return name or f"  {remark}"
    return f"  {name:<{_NAME}} {number:>11}  {remark}".rstrip()


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "0%"

"""What a plan means for people: whose bytes make the peak, and what each recomputation buys.

peak = Σ over kinds of bytes held while the op at the peak runs
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch.fx import Node

from checkmate import Solution, Timeline
from checkmate.problem import keep_all_peak
from checkmate.report.reading import Reading
from checkmate.report.text import clipped, cost_text
from checkmate.units import format_bytes
from checkmate_torch.account import Account, Kind
from checkmate_torch.lowering import Lowering

__all__ = ["Explanation", "PeakReport", "Recomputed", "explain", "module_of", "report"]

_LARGEST = 5
_ROWS = 20
_NAME = 44
_ROOT = re.compile(r"^L\['\w+'\]\.?")
"""How Dynamo names the model itself."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PeakReport:
    """Where every byte of a step's peak is; prints as a table.

    Attributes:
        budget: bytes.
        peak: predicted, in bytes.
        measured: by a meter, in bytes; None if nobody measured.
        plain_peak: predicted peak of the step without recomputation, in bytes.
        overhead: extra cost of the recomputations, as a share of the plain step's cost.
        op: name of the op that runs at the peak.
        by_kind: bytes of each kind at the peak, largest first; together they are ``peak``.
        largest: name, kind and bytes of the largest tensors held at the peak, largest first.
        status: what is proved of the schedule.
        lowering: how the graphs run.
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
    lowering: Lowering = "eager"

    def __str__(self) -> str:
        """The table."""
        return "\n".join(self._lines())

    __repr__ = __str__

    def _lines(self) -> Iterator[str]:
        yield _row("budget", self.budget)
        yield _row("predicted peak", self.peak, f"{_share(self.peak, self.budget)} of the budget")
        if self.measured is not None:
            yield _row("measured peak", self.measured, f"{_share(self.measured, self.peak)} of the predicted")
        if self.lowering == "inductor":
            yield "  Inductor orders and frees in its own way: the prediction is no bound; measure the peak"
        yield _row(
            "plain step's peak", self.plain_peak, f"this is {_share(self.peak, self.plain_peak)} of it"
        )
        yield f"  {'extra cost':<{_NAME}} {self.overhead:>11.1%}  {self.status}"
        yield f"at the peak, while {clipped(self.op, _NAME)!r} runs"
        for kind, size in self.by_kind.items():
            yield _row(kind, size, _share(size, self.peak))
        yield "largest tensors then"
        for name, kind, size in self.largest:
            yield _row(clipped(name, _NAME), size, kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """One op that runs more than once, and why.

    Attributes:
        op: its name.
        module: where in the model it comes from, as far as PyTorch knows; else empty.
        again: how many runs are not the first.
        size: bytes of what is away in between and brought back.
        saved: bytes of it that are away at the peak.
        paid: cost of the further runs, in the graph's cost unit.
        without: what the peak would be if one absence, the worst, had been a stay, in bytes.
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
    """What is recomputed, the dearest first; prints as a table.

    Attributes:
        rows: one for each op that runs more than once.
        cost_unit: of ``paid``.
    """

    rows: tuple[Recomputed, ...]
    cost_unit: str

    def __str__(self) -> str:
        """The table; of many rows the dearest."""
        return "\n".join(self._lines())

    __repr__ = __str__

    def _lines(self) -> Iterator[str]:
        if not self.rows:
            yield "nothing is recomputed"
            return
        yield f"{'recomputed':<{_NAME}} {'again':>5} {'brings back':>11} {'pays':>10}  why"
        for row in self.rows[:_ROWS]:
            name = f"{row.op}  {row.module}" if row.module else row.op
            yield (
                f"{clipped(name, _NAME):<{_NAME}} {row.again:>4}× {format_bytes(row.size):>11} "
                f"{cost_text(row.paid, self.cost_unit):>10}  {row.reason}"
            )
        if rest := self.rows[_ROWS:]:
            paid = cost_text(sum(row.paid for row in rest), self.cost_unit)
            yield f"… and {len(rest)} more, which pay {paid}"


def report(
    solution: Solution, account: Account, *, measured: int | None = None, lowering: Lowering = "eager"
) -> PeakReport:
    """Where the bytes of a solution's peak are.

    Args:
        solution: with a schedule.
        account: what each byte is held for.
        measured: peak of a step, in bytes.
        lowering: how its graphs run.

    Raises:
        ValueError: if the solution has no schedule.
    """
    timeline = _timeline(solution)
    graph, op = timeline.graph, timeline.peak_op
    held = account.held_at_peak(timeline)
    largest = sorted(held, key=lambda t: -graph.tensors[t].size)[:_LARGEST]
    return PeakReport(
        budget=solution.problem.budget,
        peak=timeline.peak,
        measured=measured,
        plain_peak=keep_all_peak(graph),
        overhead=timeline.overhead,
        op=graph.ops[op].name if op is not None else "",
        by_kind=account.at_peak(timeline),
        largest=tuple((graph.tensors[t].name, account.kinds[t], graph.tensors[t].size) for t in largest),
        status=str(solution.status),
        lowering=lowering,
    )


def explain(solution: Solution, modules: Sequence[str] = ()) -> Explanation:
    """What a solution recomputes and why, the dearest first.

    Args:
        solution: with a schedule.
        modules: where each op of the graph comes from.

    Raises:
        ValueError: if the solution has no schedule.
    """
    timeline = _timeline(solution)
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


def module_of(node: Node | None) -> str:
    """The path of the module that a traced node comes from, as far as PyTorch knows it; else empty."""
    meta = node.meta if node is not None else {}
    stack = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack")  # the latter in backward
    return _ROOT.sub("", list(stack.values())[-1][0]) if stack else ""


def _reason(saved: int, without: int, budget: int) -> str:
    if without > budget:
        return f"kept, the peak would be {format_bytes(without)}: over the budget"
    if saved:
        return f"{format_bytes(saved)} less at the peak"
    return "read by another that is recomputed" if not without else "makes room together with others"


def _timeline(solution: Solution) -> Timeline:
    if solution.timeline is None:
        raise ValueError(f"there is no schedule to report on: {solution!r}")
    return solution.timeline


def _row(name: str, size: int, remark: str = "") -> str:
    return f"  {name:<{_NAME}} {format_bytes(size):>11}  {remark}".rstrip()


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "0%"

"""The tables of the HTML report: the figures of the answer, the recomputed ops, the tensors at the peak."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from html import escape

from checkmate.problem.solution import Solution
from checkmate.report.reading import Reading, Recomputation
from checkmate.simulate import Timeline
from checkmate.text.markup import table
from checkmate.text.printable import clipped, cost_text
from checkmate.units import format_bytes

__all__ = ["facts", "holder_table", "recompute_table"]

_ROWS = 50
_HOLDERS = 20


def facts(answer: Solution | Timeline, budget: int | None) -> str:
    """The figures of the answer; of a bare timeline, those of the simulator and the budget."""
    if isinstance(answer, Solution):
        rows = answer.facts
    else:
        rows = [
            ("cost", cost_text(answer.cost, answer.graph.cost_unit)),
            ("overhead", f"{answer.overhead:.2%}"),
            ("peak", format_bytes(answer.peak)),
            *([("budget", format_bytes(budget))] if budget is not None else []),
            ("recomputed", f"{answer.recomputes:,} runs"),
        ]
    cells = "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in rows)
    return f'<dl class="facts">{cells}</dl>'


def recompute_table(reading: Reading, budget: int | None) -> str:
    """Each recomputed op: times computed, extra cost, bytes saved, and the reason."""
    rows = reading.recomputations()
    head = "<section><h2>Recomputed ops, and why</h2>"
    if not rows:
        return f"{head}<p>Nothing: every op runs at most once.</p></section>"
    graph, total = reading.timeline.graph, float(reading.starts[-1])
    cells = [
        [
            clipped(graph.ops[row.op].name, 80),
            f"{row.again + 1:,}",
            cost_text(row.paid, graph.cost_unit),
            format_bytes(row.size),
            format_bytes(round(row.byte_time / total)) if total else "",
            _reason(reading, row, budget),
        ]
        for row in rows[:_ROWS]
    ]
    note = ""
    if len(rows) > _ROWS:
        paid = cost_text(sum(row.paid for row in rows[_ROWS:]), graph.cost_unit)
        note = f"<p>{len(rows) - _ROWS:,} more ops are left out; their extra cost is {escape(paid)}.</p>"
    return (
        f"{head}<p>The most expensive first. <i>Times</i>: computes of the op. <i>Bytes saved</i>: the most "
        "that was freed at one time and recomputed later; <i>on average</i>: over the whole step.</p>"
        + _table(
            ("op", "times", "extra cost", "bytes saved", "on average", "why"), cells, numbers=range(1, 5)
        )
        + f"{note}</section>"
    )


def _reason(reading: Reading, row: Recomputation, budget: int | None) -> str:
    """The peak if the tensors had been kept instead, each absence by itself."""
    if row.first < 0:
        return "no later read needed it: this run saved nothing"
    first, last = reading.steps[row.first], reading.steps[row.end - 1]
    away = f"away during steps {first}–{last}" if first < last else f"away during step {first}"
    if row.at_peak:
        away += f", across the peak: {format_bytes(row.at_peak)} less there"
    kept = f"{away}; kept, memory would have reached {format_bytes(row.without)}"
    if budget is None:
        return kept
    over = row.without - budget
    return f"{kept}, {format_bytes(over)} over the budget" if over > 0 else f"{kept}, within the budget"


def holder_table(reading: Reading) -> str:
    """The tensors held during the run that sets the peak, the largest first."""
    holders, peak = reading.holders(reading.peak_run), max(reading.timeline.peak, 1)
    by_kind: dict[str, int] = {}
    for holder in holders:
        by_kind[holder.kind] = by_kind.get(holder.kind, 0) + holder.size
    kinds = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in by_kind.items())
    rows = [
        [
            clipped(h.name, 80),
            h.kind,
            format_bytes(h.size),
            f"{h.size / peak:.1%}",
            _bar(h.kind, h.size / holders[0].size),
        ]
        for h in holders[:_HOLDERS]
    ]
    rest = holders[_HOLDERS:]
    size = format_bytes(sum(h.size for h in rest))
    note = f"<p>{len(rest):,} smaller ones are left out; they hold {size}.</p>" if rest else ""
    op = reading.timeline.graph.ops[int(reading.ops[reading.peak_run])]
    return (
        "<section><h2>Tensors at the peak</h2>"
        f"<p>While {escape(clipped(op.name, 80))} runs (step {reading.steps[reading.peak_run]}): {kinds}.</p>"
        + _table(("what", "kind", "bytes", "share", ""), rows, numbers=(2, 3), markup=4)
        + f"{note}</section>"
    )


def _bar(kind: str, share: float) -> str:
    return (
        '<svg viewBox="0 0 100 8" preserveAspectRatio="none">'
        f'<rect class="{kind}" width="{100 * share:.1f}" height="8"/></svg>'
    )


def _table(
    head: Iterable[str], rows: Iterable[Iterable[str]], *, numbers: Collection[int], markup: int = -1
) -> str:
    """A table that scrolls where it is wider than the page."""
    return f'<div class="scroll">{table(rows, head, numbers=numbers, markup=markup)}</div>'

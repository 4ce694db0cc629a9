"""The results as Markdown, for the page that quotes them (``evaluate.py --pages``)."""

from __future__ import annotations

from collections.abc import Iterable

from pages import conditions, table
from solvers.records import Results, Row
from solvers.summary import OURS, findings, layered_table, ratios_table

__all__ = ["markdown"]

_BESIDE = ("checkmate-milp", "retention-intervals", "lp-rounding")
_NONE = "–"


def markdown(results: Results) -> str:
    """What the page says of a run."""
    ran = conditions(results.sessions)
    limit = f"Time limit {results.settings.time_limit:g} s; each solve in a process of its own, on one core."
    parts = [f"{ran}\n{limit}", "### Case by case", _cases(results)]
    if layered_table(results):
        parts += ["### Random layered graphs", _layered(results)]
    parts += ["### Cost over the best known cost of the case", _ratios(results), "### Goals", _goals(results)]
    return "\n\n".join(parts)


def _cases(results: Results) -> str:
    """One line a case; of several seeds the dearest."""
    beside = [s for s in _BESIDE if any(row.solver == s for row in results.rows)]
    head = ["graph", "ops", "budget", OURS, "gap %", "first s", "1 % s", "final s", *beside]
    lines = []
    for graph, share in results.cases():
        ours = _worst(results.of(graph, share, OURS))
        figures: list[str] = [_answer(results, ours, seconds=False)] if ours else [_NONE]
        figures.append(_number(100 * ours.gap, 3) if ours and ours.gap is not None else _NONE)
        times = (ours.first_s, ours.within_s(0.01), ours.final_s) if ours else (None, None, None)
        figures += [_number(s, 3) for s in times]
        figures += [_answer(results, _worst(results.of(graph, share, s))) for s in beside]
        lines.append([graph, str(results.graphs[graph].ops), f"{share:.0%}", *figures])
    note = "Cost relative to computing every op once; of the others, cost and seconds to it."
    return f"{note}\n\n{table(head, lines)}"


def _layered(results: Results) -> str:
    systems = ["FastSA", "MOCCASIN"]
    lines = [
        [graph, kind, f"{share:.0%}", _NONE if percent is None else f"{percent:.2f} %"]
        + [theirs.get(system, _NONE) for system in systems]
        for graph, kind, share, percent, theirs in layered_table(results)
    ]
    head = [
        "graph",
        "of the kind",
        "budget",
        f"{OURS}, extra cost",
        *(f"{s}, on its own graph" for s in systems),
    ]
    return table(head, lines)


def _ratios(results: Results) -> str:
    lines = [
        [solver, f"{found} of {asked}", _number(mean, 3), _number(worst, 3), published or _NONE]
        for solver, asked, found, mean, worst, published in ratios_table(results)
        if any(row.solver == solver and row.outcome != "not installed" for row in results.rows)
    ]
    head = ["solver", "cases solved", "geometric mean", "largest", "published for Checkmate's own graphs"]
    return table(head, lines)


def _goals(results: Results) -> str:
    verdict = {True: "reached", False: "missed", None: "not measured"}
    lines = [[found.goal, verdict[found.reached], found.figures] for found in findings(results)]
    return table(["goal", "", "figures"], lines)


def _answer(results: Results, row: Row | None, *, seconds: bool = True) -> str:
    """A cost, and when it was reached; or what happened."""
    if row is None or row.outcome == "not installed":
        return _NONE
    cost = results.relative(row, row.cost)
    if cost is None:
        return {"unknown": "none found"}.get(row.outcome, row.outcome)
    return f"{cost:.5f}" + (f" ({_number(row.final_s, 2)})" if seconds else "")


def _worst(rows: Iterable[Row]) -> Row | None:
    return max(rows, key=lambda row: float("inf") if row.cost is None else row.cost, default=None)


def _number(value: float | None, digits: int) -> str:
    return _NONE if value is None else f"{value:.{digits}f}"

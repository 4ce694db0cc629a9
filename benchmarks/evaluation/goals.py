"""Goals of the default solver on the solver benchmark, and whether a results file reaches them.

Times are of one run on one machine, so only large ratios of times mean something.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from evaluation.published import KINDS
from evaluation.results import Results, Row
from evaluation.solving import cost_s, gap_s

__all__ = ["OURS", "Finding", "findings", "gap_of"]

OURS = "auto"
_SAME = 1e-9
_LEAST_S = 1e-3
"""Shorter times count as this, so that ratios of times are not noise."""
_CERTIFIED = ((400, 1.0), (1300, 3.0), (3300, 10.0))
"""Up to this many ops, a gap of 0.1 % within these seconds."""
_FIRST = ((700, 0.05), (3300, 1.0))
"""Up to this many ops, a schedule within these seconds."""
_LAYERED = {
    ("RL1", 0.9): 0.1,
    ("RL1", 0.8): 1.2,
    ("RL1", 0.7): 2.2,
    ("RL2", 0.9): 0.0,
    ("RL2", 0.8): 0.3,
    ("RL2", 0.7): 2.6,
}
"""Extra cost in percent."""


_Pair = tuple[Row, Row]
"""Our row and the other solver's, of the same case."""


class Finding(NamedTuple):
    """One goal: whether it is reached (None: the file does not say), and the figures."""

    goal: str
    reached: bool | None
    figures: str


def findings(results: Results) -> list[Finding]:
    """All goals."""
    rows = list(results.where())
    ours = [row for row in rows if row["solver"] == OURS]
    return [
        *_against(ours, rows, "checkmate-milp", 50.0),
        *_against(ours, rows, "retention-intervals", 10.0),
        _layered(ours),
        *(_certified(ours, sizes, seconds) for sizes, seconds in _sizes(_CERTIFIED)),
        _deep(ours),
        *(_first(ours, sizes, seconds) for sizes, seconds in _sizes(_FIRST)),
        _ended(rows),
    ]


def gap_of(row: Row | Mapping[str, Any]) -> float | None:
    """(cost − bound) / cost at the end; None without a schedule or a bound."""
    cost, bound = row["cost"], row["bound"]
    if cost is None or bound is None:
        return None
    return float((cost - bound) / cost) if cost > 0 else 0.0


def _against(ours: Sequence[Row], rows: Sequence[Row], other: str, factor: float) -> tuple[Finding, Finding]:
    """Costs, then times to the other's final cost, on the cases that both were asked."""
    theirs = {
        (row["graph"], row["share"]): row
        for row in rows
        if row["solver"] == other and row["ended"] not in ("not installed", "infeasible")
    }
    found = {(row["graph"], row["share"]): row for row in ours}
    asked = [(found[case], theirs[case]) for case in found if case in theirs]
    both = [(a, b) for a, b in asked if b["cost"] is not None]
    return _cost_against(asked, both, other), _time_against(both, other, factor)


def _cost_against(asked: Sequence[_Pair], both: Sequence[_Pair], other: str) -> Finding:
    costs = [(math.inf if a["cost"] is None else a["cost"], b["cost"]) for a, b in both]
    worse = sum(mine > cost * (1 + _SAME) for mine, cost in costs)
    cheaper = sum(mine < cost * (1 - _SAME) for mine, cost in costs)
    alone = sum(a["cost"] is not None and b["cost"] is None for a, b in asked)
    return Finding(
        f"never a higher cost than {other}",
        not worse if both else None,
        f"{len(asked)} solves: {other} found no schedule in {len(asked) - len(both)}, {OURS} did in "
        f"{alone} of these; {OURS} is cheaper in {cheaper}, more expensive in {worse}",
    )


def _time_against(both: Sequence[_Pair], other: str, factor: float) -> Finding:
    ratios = [_speedup(a, b) for a, b in both]
    positive = [ratio for ratio in ratios if ratio > 0]
    mean = math.exp(sum(map(math.log, positive)) / len(positive)) if positive else math.nan
    fast = sum(ratio >= factor for ratio in ratios)
    return Finding(
        f"≥ {factor:g}× faster than {other} to its final cost",
        fast == len(ratios) if ratios else None,
        f"{fast} of {len(ratios)} solves; geometric mean {mean:.0f}×",
    )


def _speedup(ours: Row, theirs: Row) -> float:
    """Their seconds to their final cost over ours to that cost; 0 if we never reached it."""
    mine = cost_s(ours["moments"], theirs["cost"])
    return 0.0 if mine is None else max(theirs["final_s"], _LEAST_S) / max(mine, _LEAST_S)


def _layered(ours: Sequence[Row]) -> Finding:
    misses, figures = 0, []
    for row in ours:
        kind = KINDS.get(row["graph"], "")
        if (kind, row["share"]) in _LAYERED:
            percent = math.inf if row["cost"] is None else 100 * (row["cost"] - 1)
            figures.append(f"{kind} at {row['share']:.0%}: {percent:.2f} %")
            misses += percent > _LAYERED[kind, row["share"]] + 0.005
    goal = "extra cost on graphs of the kinds RL1 (0.1, 1.2, 2.2 %) and RL2 (0, 0.3, 2.6 %)"
    return Finding(goal, not misses if figures else None, ", ".join(figures))


def _certified(ours: Sequence[Row], sizes: tuple[int, int], within_s: float) -> Finding:
    rows = [row for row in ours if row["share"] >= 0.4 and _is_step(row) and _is_of(row, sizes)]
    times = [gap_s(row["moments"], 1e-3) for row in rows]
    return _timed(f"training graphs of {_span(sizes)}, budget ≥ 40 %: gap ≤ 0.1 %", times, within_s)


def _deep(ours: Sequence[Row]) -> Finding:
    rows = [row for row in ours if 0.2 <= row["share"] < 0.4 and _is_step(row)]
    reached = sum((gap_s(row["moments"], 1e-2) or math.inf) <= 10 for row in rows)
    return Finding(
        "training graphs, 20 % ≤ budget < 40 %: gap ≤ 1 % within 10 s in most",
        2 * reached > len(rows) if rows else None,
        f"{reached} of {len(rows)} solves",
    )


def _first(ours: Sequence[Row], sizes: tuple[int, int], within_s: float) -> Finding:
    rows = [row for row in ours if row["ended"] != "infeasible" and _is_of(row, sizes)]
    return _timed(f"graphs of {_span(sizes)}: a first schedule", [row["first_s"] for row in rows], within_s)


def _ended(rows: Sequence[Row]) -> Finding:
    bad = [row for row in rows if row["ended"] in ("failed", "crashed", "killed")]
    held = max((row["held"] or 0 for row in rows if row["solver"] == OURS), default=0)
    said = "; ".join(f"{row['solver']} on {row['graph']} at {row['share']:.0%}: {row['note']}" for row in bad)
    figures = f"{len(rows)} solves; {OURS} held at most {held / 2**20:.0f} MiB"
    return Finding(
        "every solver answers", not bad if rows else None, f"{figures}; {said}" if said else figures
    )


def _timed(goal: str, times: Sequence[float | None], within_s: float) -> Finding:
    known = [seconds for seconds in times if seconds is not None]
    late = len(times) - sum(seconds <= within_s for seconds in known)
    return Finding(
        f"{goal} within {within_s:g} s",
        not late if times else None,
        f"{len(times) - late} of {len(times)} solves; slowest {max(known):.3f} s"
        if known
        else f"0 of {len(times)} solves",
    )


def _is_step(row: Row) -> bool:
    return bool(row["training"]) and row["ended"] != "infeasible"


def _is_of(row: Row, sizes: tuple[int, int]) -> bool:
    return sizes[0] < row["ops"] <= sizes[1]


def _sizes(limits: Sequence[tuple[int, float]]) -> Iterator[tuple[tuple[int, int], float]]:
    """Each limit with the one below it."""
    least = 0
    for most, seconds in limits:
        yield (least, most), seconds
        least = most


def _span(sizes: tuple[int, int]) -> str:
    return f"{sizes[0] + 1} to {sizes[1]} ops" if sizes[0] else f"at most {sizes[1]} ops"

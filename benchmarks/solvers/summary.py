"""What the suite is meant to reach, and what a results file says of it.

Times are of one run on one machine, so ratios of times mean something where they are far apart. With several
seeds the worst counts, for costs and for times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from solvers.published import KINDS, LAYERED, RATIOS
from solvers.records import Results, Row

__all__ = ["OURS", "Finding", "findings", "layered_table", "ratios_table"]

OURS = "auto"
_SAME = 1e-9
_NO_SCHEDULE = math.inf
_LEAST_S = 1e-3
"""Shorter times count as this, so that ratios of times stay sensible."""
_LISTED = 12
_KNOWN_WITHIN = 1.002
_CERTIFIED = ((400, 1.0), (1300, 3.0), (3300, 10.0))
"""Up to so many ops, a gap of 0.1 % within so many seconds."""
_FIRST = ((700, 0.05), (3300, 1.0))
"""Up to so many ops, a schedule within so many seconds."""
_LAYERED_GOALS = {
    ("RL1", 0.9): 0.1,
    ("RL1", 0.8): 1.2,
    ("RL1", 0.7): 2.2,
    ("RL2", 0.9): 0.0,
    ("RL2", 0.8): 0.3,
    ("RL2", 0.7): 2.6,
}
"""Extra cost in percent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One goal: whether it is reached (None: the file does not say), the figures, the cases that miss it."""

    goal: str
    reached: bool | None
    figures: str
    misses: tuple[str, ...] = ()

    def __str__(self) -> str:
        """A few lines of text."""
        verdict = {True: "reached", False: "MISSED", None: "not measured"}[self.reached]
        shown = [f"    {miss}" for miss in self.misses[:_LISTED]]
        if len(self.misses) > _LISTED:
            shown.append(f"    … and {len(self.misses) - _LISTED} more")
        return "\n".join([f"{verdict:<13}{self.goal}", f"  {self.figures}", *shown])


def findings(results: Results) -> list[Finding]:
    """All goals, in the order in which they are stated."""
    return [
        _cost_against(results, "checkmate-milp"),
        _time_against(results, "checkmate-milp", 50.0),
        _cost_against(results, "retention-intervals"),
        _time_against(results, "retention-intervals", 10.0),
        _against_known(results),
        _layered(results),
        *(_certified(results, n, seconds) for n, seconds in _sizes(_CERTIFIED)),
        _deep(results),
        *(_first(results, n, seconds) for n, seconds in _sizes(_FIRST)),
        _ended(results),
    ]


def layered_table(results: Results) -> list[tuple[str, str, float, float | None, dict[str, str]]]:
    """Graph, kind, share, our extra cost in percent (of the worst seed), and what others published."""
    table = []
    for graph, share in results.cases():
        kind, mine = KINDS.get(graph), results.of(graph, share, OURS)
        if kind is not None and mine:
            worst = max(_cost(results, row) for row in mine)
            percent = None if math.isinf(worst) else 100 * (worst - 1)
            told = {name: p[kind, share] for name, p in LAYERED.items() if (kind, share) in p}
            theirs = {name: f"{figure.percent:g} % in {figure.took}" for name, figure in told.items()}
            table.append((graph, kind, share, percent, theirs))
    return table


def ratios_table(results: Results) -> list[tuple[str, int, int, float | None, float | None, str]]:
    """Solver, cases asked, cases solved, mean and largest of cost / best, Checkmate's published ratio.

    The mean is geometric.
    """
    table = []
    for solver in dict.fromkeys(row.solver for row in results.rows):
        ratios, asked = [], 0
        for graph, share in results.cases():
            best, rows = results.best(graph, share), results.of(graph, share, solver)
            if best is not None and rows:
                asked += 1
                ratios.append(max(_cost(results, row) for row in rows) / best)
        found = [ratio for ratio in ratios if math.isfinite(ratio)]
        mean = math.exp(sum(map(math.log, found)) / len(found)) if found else None
        published = "; ".join(RATIOS.get(solver, ()))
        table.append((solver, asked, len(found), mean, max(found, default=None), published))
    return table


# --- goals ------------------------------------------------------------------------------------------------


def _cost_against(results: Results, other: str) -> Finding:
    pairs = list(_pairs(results, other))
    both = [(a, b) for a, b in pairs if b.cost is not None]
    worse = [
        f"{_where(a)}: {_cost(results, a):.6f} against {_cost(results, b):.6f}"
        for a, b in both
        if _cost(results, a) > _cost(results, b) * (1 + _SAME)
    ]
    cheaper = sum(_cost(results, a) < _cost(results, b) * (1 - _SAME) for a, b in both)
    alone = sum(a.cost is not None and b.cost is None for a, b in pairs)
    return Finding(
        goal=f"never a worse cost than {other}",
        reached=not worse if both else None,
        figures=f"{len(pairs)} solves: {other} found nothing in {len(pairs) - len(both)} (we did in {alone} "
        f"of them); we are cheaper in {cheaper}, dearer in {len(worse)}"
        if pairs
        else "no solve to compare",
        misses=tuple(worse),
    )


def _time_against(results: Results, other: str, factor: float) -> Finding:
    """Time until the other's final cost: the other's over ours."""
    ratios, misses = [], []
    for ours, theirs in _pairs(results, other):
        if theirs.cost is None or theirs.final_s is None:
            continue
        mine = ours.cost_s(theirs.cost)
        ratio = 0.0 if mine is None else max(theirs.final_s, _LEAST_S) / max(mine, _LEAST_S)
        ratios.append(ratio)
        if ratio < factor:
            took = "never" if mine is None else f"{mine:.3f} s"
            misses.append(f"{_where(ours)}: {took} against {theirs.final_s:.3f} s")
    positive = [ratio for ratio in ratios if ratio > 0]
    mean = math.exp(sum(map(math.log, positive)) / len(positive)) if positive else math.nan
    return Finding(
        goal=f"≥ {factor:g}× faster than {other} to its final cost",
        reached=not misses if ratios else None,
        figures=f"{len(ratios) - len(misses)} of {len(ratios)} solves; geometric mean {mean:.0f}×"
        if ratios
        else "no solve to compare",
        misses=tuple(misses),
    )


def _against_known(results: Results) -> Finding:
    ratios = {}
    for key, best in results.known.items():
        graph, _, share = key.rpartition(":")
        for row in results.of(graph, float(share), OURS):
            ratios[_where(row)] = _cost(results, row) / best
    return Finding(
        goal=f"cost ≤ best known × {_KNOWN_WITHIN}",
        reached=max(ratios.values()) <= _KNOWN_WITHIN if ratios else None,
        figures=f"{len(ratios)} solves, {min(ratios.values()):.5f} to {max(ratios.values()):.5f} × best known"
        if ratios
        else "no best known costs: --known",
        misses=tuple(f"{where}: {r:.5f}" for where, r in ratios.items() if r > _KNOWN_WITHIN),
    )


def _layered(results: Results) -> Finding:
    misses, figures = [], []
    for graph, kind, share, percent, _ in layered_table(results):
        goal = _LAYERED_GOALS.get((kind, share))
        if goal is not None:
            shown = "none" if percent is None else f"{percent:.2f} %"
            figures.append(f"{kind} at {share:.0%}: {shown}")
            if percent is None or percent > goal + 0.005:
                misses.append(f"{graph} at {share:.0%}: {shown}, goal {goal:g} %")
    return Finding(
        goal="extra cost on graphs of the kinds RL1 (0.1, 1.2, 2.2 %) and RL2 (0, 0.3, 2.6 %)",
        reached=not misses if figures else None,
        figures=", ".join(figures) or "no such graph",
        misses=tuple(misses),
    )


def _certified(results: Results, sizes: tuple[int, int], within_s: float) -> Finding:
    rows = _ours(results, lambda row: row.share >= 0.4 and _is_step(results, row, sizes))
    times = {_where(row): row.gap_s(1e-3) for row in rows}
    return _timed(f"training graphs of {_span(sizes)}, f ≥ 0.4: gap ≤ 0.1 %", times, within_s)


def _first(results: Results, sizes: tuple[int, int], within_s: float) -> Finding:
    rows = _ours(results, lambda row: sizes[0] < results.graphs[row.graph].ops <= sizes[1])
    times = {_where(row): row.first_s for row in rows if row.outcome != "infeasible"}
    return _timed(f"graphs of {_span(sizes)}: a first schedule", times, within_s)


def _deep(results: Results) -> Finding:
    rows = _ours(results, lambda row: 0.2 <= row.share < 0.4 and _is_step(results, row, (0, 10**9)))
    rows = [row for row in rows if row.outcome != "infeasible"]
    reached = [row for row in rows if (seconds := row.gap_s(1e-2)) is not None and seconds <= 10]
    return Finding(
        goal="training graphs, 0.2 ≤ f < 0.4: gap ≤ 1 % within 10 s in most",
        reached=2 * len(reached) > len(rows) if rows else None,
        figures=f"{len(reached)} of {len(rows)} solves",
        misses=tuple(f"{_where(row)}: gap {_percent(row.gap)}" for row in rows if row not in reached),
    )


def _ended(results: Results) -> Finding:
    """No solver of any name fell over."""
    bad = [row for row in results.rows if row.outcome in ("failed", "crashed", "killed")]
    held = max((row.peak_rss or 0 for row in results.rows if row.solver == OURS), default=0)
    return Finding(
        goal="every solver answers",
        reached=not bad if results.rows else None,
        figures=f"{len(results.rows)} solves; {OURS} held at most {held / 2**20:.0f} MiB",
        misses=tuple(f"{_where(row)}, {row.solver}: {row.outcome}: {row.note}" for row in bad),
    )


def _timed(goal: str, times: dict[str, float | None], within_s: float) -> Finding:
    late = {where: s for where, s in times.items() if s is None or s > within_s}
    slowest = max((s for s in times.values() if s is not None), default=math.nan)
    return Finding(
        goal=f"{goal} within {within_s:g} s",
        reached=not late if times else None,
        figures=f"{len(times) - len(late)} of {len(times)} solves; the slowest of them took {slowest:.3f} s"
        if times
        else "no such graph",
        misses=tuple(f"{where}: {'never' if s is None else f'{s:.3f} s'}" for where, s in late.items()),
    )


# --- rows -------------------------------------------------------------------------------------------------


def _pairs(results: Results, other: str) -> Iterator[tuple[Row, Row]]:
    """Our rows and the other's, of the same case and seed; those that say nothing are left out."""
    theirs = {(r.graph, r.share, r.seed): r for r in results.rows if r.solver == other}
    for row in _ours(results, lambda _: True):
        match = theirs.get((row.graph, row.share, row.seed))
        if match is not None and match.outcome not in ("not installed", "infeasible"):
            yield row, match


def _ours(results: Results, wanted: Callable[[Row], bool]) -> list[Row]:
    return [row for row in results.rows if row.solver == OURS and wanted(row)]


def _is_step(results: Results, row: Row, sizes: tuple[int, int]) -> bool:
    facts = results.graphs[row.graph]
    return facts.training and sizes[0] < facts.ops <= sizes[1] and row.outcome != "infeasible"


def _cost(results: Results, row: Row) -> float:
    cost = results.relative(row, row.cost)
    return _NO_SCHEDULE if cost is None else cost


def _sizes(limits: Sequence[tuple[int, float]]) -> Iterator[tuple[tuple[int, int], float]]:
    """Each limit with the one below it."""
    least = 0
    for most, seconds in limits:
        yield (least, most), seconds
        least = most


def _span(sizes: tuple[int, int]) -> str:
    return f"{sizes[0] + 1} to {sizes[1]} ops" if sizes[0] else f"at most {sizes[1]} ops"


def _where(row: Row) -> str:
    return f"{row.graph} at {row.share:.0%}, seed {row.seed}"


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{100 * share:.2f} %"

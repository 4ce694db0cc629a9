"""What a run leaves behind: one row for each solve, with how it went and how cost and bound moved over time.

Costs are in the graph's own unit; seconds count from the call of the solver, imports and compilation before
them left out. Kept as JSON that says its version; a row without a schedule has null where a number would be.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

__all__ = [
    "GraphFacts",
    "Key",
    "Moment",
    "Results",
    "Row",
    "Settings",
    "read_results",
    "thinned",
]

Key = tuple[str, float, str, int]
Outcome = Literal[
    "optimal", "feasible", "infeasible", "unknown", "failed", "crashed", "killed", "not installed"
]

_SAME = 1e-9
_NEWS = 1e-5


class Moment(msgspec.Struct, frozen=True, array_like=True):
    """At so many seconds: the least cost so far, None without a schedule, and the best bound."""

    seconds: float
    cost: float | None
    bound: float


class GraphFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the report says of a graph; sizes in bytes."""

    ops: int
    tensors: int
    training: bool
    ideal_cost: float
    keep_all_peak: int
    floor: int
    digest: str


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One solve.

    Attributes:
        graph: name.
        share: budget / keep-everything peak.
        budget: bytes.
        solver: name.
        seed: of its random choices.
        outcome: the judged status, or what happened instead: ``failed`` (an error), ``crashed`` (the process
            died), ``killed`` (it was still running long after its time), ``not installed``.
        note: what happened, in words.
        cost: of the judged schedule.
        bound: proved lower bound on the cost.
        peak: of the schedule, bytes.
        seconds: that the call took.
        moments: each improvement of cost or bound.
        peak_rss: bytes that the process held at most.
        rss_before: the same before the solve: Python, libraries, the graph.
        origin: which step of the solver gave what.
    """

    graph: str
    share: float
    budget: int
    solver: str
    seed: int
    outcome: Outcome
    note: str = ""
    cost: float | None = None
    bound: float | None = None
    peak: int | None = None
    seconds: float | None = None
    moments: tuple[Moment, ...] = ()
    peak_rss: int | None = None
    rss_before: int | None = None
    origin: dict[str, str] = {}

    @property
    def key(self) -> Key:
        """What tells rows apart."""
        return self.graph, self.share, self.solver, self.seed

    @property
    def gap(self) -> float | None:
        """``(cost − bound) / cost`` at the end."""
        return None if self.cost is None or self.bound is None else _gap(self.cost, self.bound)

    @property
    def first_s(self) -> float | None:
        """When there was a schedule."""
        return next((m.seconds for m in self.moments if m.cost is not None), None)

    @property
    def final_s(self) -> float | None:
        """When the schedule was as cheap as at the end."""
        return self.within_s(0.0)

    def within_s(self, share: float) -> float | None:
        """When the cost was at most ``share`` above that at the end."""
        return None if self.cost is None else self.cost_s(self.cost * (1 + share))

    def cost_s(self, cost: float) -> float | None:
        """When the cost was at most this."""
        most = cost * (1 + _SAME)
        return next((m.seconds for m in self.moments if m.cost is not None and m.cost <= most), None)

    def gap_s(self, gap: float) -> float | None:
        """When the gap was at most this."""
        found = (m.seconds for m in self.moments if m.cost is not None and _gap(m.cost, m.bound) <= gap)
        return next(found, None)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What all rows of a file have in common."""

    time_limit: float
    fixed_order: bool = False


class Results(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="format", tag="checkmate.solver-benchmark"
):
    """A results file.

    Attributes:
        settings: of all rows.
        sessions: machine, versions, commit, date and command of each run that added rows, in order.
        graphs: what was asked about.
        known: ``graph:share`` → best cost known from elsewhere, relative to computing every op once.
        rows: the solves, in the order in which they ran.
        version: of this format.
    """

    settings: Settings
    sessions: tuple[dict[str, Any], ...] = ()
    graphs: dict[str, GraphFacts] = {}
    known: dict[str, float] = {}
    rows: tuple[Row, ...] = ()
    version: int = 1

    def cases(self) -> list[tuple[str, float]]:
        """The pairs of graph and share, in order."""
        return list(dict.fromkeys((row.graph, row.share) for row in self.rows))

    def of(self, graph: str, share: float, solver: str = "") -> list[Row]:
        """The rows of a case; of one solver, if it is named."""
        return [r for r in self.rows if (r.graph, r.share) == (graph, share) and solver in ("", r.solver)]

    def relative(self, row: Row, cost: float | None) -> float | None:
        """A cost relative to computing every op once."""
        ideal = self.graphs[row.graph].ideal_cost
        return None if cost is None else cost / ideal if ideal > 0 else 1.0

    def best(self, graph: str, share: float) -> float | None:
        """The least relative cost known, from elsewhere or from any row of this file."""
        found = [self.relative(row, row.cost) for row in self.of(graph, share)]
        return min((c for c in [*found, self.known.get(f"{graph}:{share:g}")] if c is not None), default=None)


def thinned(moments: list[Moment]) -> tuple[Moment, ...]:
    """Moments without those that brought less than a thousandth of a percent; the last one stays."""
    kept: list[Moment] = []
    for moment in moments:
        if not kept or _news(kept[-1], moment):
            kept.append(moment)
    if moments and kept[-1] != moments[-1]:
        kept.append(moments[-1])
    return tuple(kept)


def read_results(file: Path) -> Results:
    """Read a results file.

    Raises:
        msgspec.ValidationError: if it is something else; names the place.
    """
    return msgspec.json.decode(file.read_bytes(), type=Results)


def _gap(cost: float, bound: float) -> float:
    return (cost - bound) / cost if cost > 0 else 0.0


def _news(before: Moment, after: Moment) -> bool:
    if before.cost is None or after.cost is None:
        return before.cost is not after.cost or after.bound > before.bound * (1 + _NEWS)
    return after.cost < before.cost * (1 - _NEWS) or after.bound > before.bound * (1 + _NEWS)

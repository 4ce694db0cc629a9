"""One solve as the solver benchmark does it, for experiments."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checkmate import DFGraph, write_graph
from solvers.cases import Case, facts_of
from solvers.measure import Limits, Solve, measured
from solvers.records import Settings

__all__ = ["solved"]

_NEAR = 0.01


def solved(
    graph: DFGraph, share: float, solver: str, *, time_limit: float, late_s: float
) -> Mapping[str, Any]:
    """Ask one solver in a fresh process on one core, warmed up; costs relative to computing every op once.

    Args:
        graph: the graph.
        share: budget / keep-everything peak.
        solver: its name.
        time_limit: seconds on the wall.
        late_s: seconds after the limit at which a solver that has not come to its end is stopped.

    Returns:
        how it ended, ``cost`` (None without a schedule), ``bound``, CPU ``seconds``; those to the first
        schedule (``first_s``), to one within 1 % of the last one's cost (``near_s``), and to that one
        (``final_s``); ``held``, the bytes that the process held at most.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "graph.json"
        write_graph(file, graph)
        case = Case(graph=file.stem, file=file, share=share)
        asked = [Solve(case=case, solver=solver, seed=0)]
        facts, limits = {case.graph: facts_of(file)}, Limits(late_s=late_s, clock="cpu")
        (row,) = measured(asked, facts, Settings(time_limit=time_limit), limits)
    once = graph.ideal_cost
    return {
        "ops": graph.n_ops,
        "ended": row.outcome,
        "note": row.note,
        "cost": None if row.cost is None else row.cost / once,
        "bound": None if row.bound is None else row.bound / once,
        "first_s": row.first_s,
        "near_s": row.within_s(_NEAR),
        "final_s": row.final_s,
        "seconds": None if row.seconds is None else round(row.seconds, 4),
        "held": row.peak_rss,
    }

"""Deep budgets: 35 % of the peak without recomputation and less, on training steps traced op by op.

``auto`` is compared with two of its parts, the local search and the cut MILP, each alone for the same time.
The costs of ``auto`` and of the local search differ from seed to seed, so medians of three seeds are shown.
Where the gap is wide, ``auto`` runs again for thirty times as long: is the bound or the schedule at fault?
The least budget that it finds is shown beside a proved lower bound. Seconds are CPU time.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from checkmate import DFGraph, floor, keep_all_peak, minimum_budget
from checkmate_solvers.parts import least_peak_bound
from evaluation.experiment import Experiment
from evaluation.goals import gap_of
from evaluation.results import Results, Row, Task
from evaluation.solving import solved
from machine import SOLVING
from pages import table

__all__ = ["EXPERIMENT"]

_NAMES = (
    *("convnext", "mobilenet-v2", "segformer", "inception", "denoiser", "pvt"),
    *("mamba", "swin", "qwen2-moe", "gpt2", "t5", "gemma2"),
)
"""Traces of :mod:`zoo.traces`, from small to large; that module needs PyTorch and transformers."""
_SHARES = (0.35, 0.3, 0.25, 0.2, 0.15)
_TOGETHER = 0.2
"""Cases from this share on are counted together, too."""
_QUICK_NAMES, _QUICK_SHARES = ("convnext",), (0.3,)
_SOLVERS, _SEEDS, _UNSEEDED = ("auto", "local-search", "cut-milp"), (0, 1, 2), "cut-milp"
"""The last one hardly depends on the seed, and runs with the first alone."""
_LIMIT_S, _QUICK_LIMIT_S, _LATE_S = 10.0, 1.0, 10.0
_LEAST_S = 10.0
_WIDE = (("convnext", 0.15), ("segformer", 0.2), ("denoiser", 0.2), ("pvt", 0.25), ("mamba", 0.2))
"""Cases whose gap is above 5 % after :data:`_LIMIT_S`."""
_WIDE_LIMIT_S = 300.0
_FIELDS = ("ended", "cost", "bound", "first_s", "near_s", "final_s")
_SLACK = 2e-3
"""Relative: how much dearer than a part of it ``auto`` may be by chance."""
_ENDS, _LIMITS_S = ("cost", "bound", "gap"), (_LIMIT_S, _WIDE_LIMIT_S)
_GAPS = (0.01, 0.03, 0.05)


def tasks(quick: bool) -> Sequence[Task]:
    """One for each trace and budget, for the least budget of each trace, and for each wide gap."""
    names, shares = (_QUICK_NAMES, _QUICK_SHARES) if quick else (_NAMES, _SHARES)
    limit = _QUICK_LIMIT_S if quick else _LIMIT_S
    return [
        *(
            {"trace": n, "share": share, "time_limit": limit, "seed": seed}
            for n in names
            for share in shares
            for seed in (_SEEDS[:1] if quick else _SEEDS)
        ),
        *({"trace": n, "share": "least", "time_limit": limit if quick else _LEAST_S} for n in names),
        *({"trace": n, "share": s, "time_limit": _WIDE_LIMIT_S} for n, s in _WIDE if not quick),
    ]


def measure(task: Task) -> Mapping[str, Any]:
    """Each solver's answer, costs relative to computing every op once; or the least peak."""
    graph = _graph(task["trace"])
    whole = keep_all_peak(graph)
    row: dict[str, Any] = {"ops": graph.n_ops, "digest": graph.digest, "floor": floor(graph).size / whole}
    if task["share"] == "least":
        started = time.process_time()
        least = minimum_budget(graph, time_limit=task["time_limit"])
        took = round(time.process_time() - started, 2)
        bound = least_peak_bound(graph) / whole
        return row | {"least": (least.peak or 0) / whole, "least_s": took, "least_bound": bound}
    if row["floor"] > task["share"]:
        return row  # no schedule exists
    limit, seed = task["time_limit"], task.get("seed", 0)
    for solver in _SOLVERS if limit < _WIDE_LIMIT_S else _SOLVERS[:1]:
        if seed != _SEEDS[0] and solver == _UNSEEDED:
            continue
        found = solved(graph, task["share"], solver, time_limit=limit, late_s=_LATE_S, seed=seed)
        row[solver] = {name: found[name] for name in _FIELDS}
    return row


@cache
def _graph(name: str) -> DFGraph:
    from zoo.traces import trace

    return trace(name)


def markdown(results: Results) -> str:
    """Case by case, the share of cases within each gap, and least budgets."""
    cells = _cells([row for row in results.rows if _SOLVERS[1] in row.result])
    wide = [row for row in results.rows if "auto" in row.result and _SOLVERS[1] not in row.result]
    least = [row for row in results.rows if "least" in row.result]
    parts = [
        "Cost relative to computing every op once, gap, and CPU seconds to the first schedule and to one "
        f"within 1 % of the last: medians of up to {len(_SEEDS)} seeds. “–”: no schedule found. Budgets "
        "below the floor are left out.",
        table(
            [
                *("trace", "ops", "budget", "floor", "`auto`", "bound", "gap", "first s", "1 % s"),
                *("`local-search`", "`cut-milp`"),
            ],
            [_line(row) for row in cells],
        ),
        _summary(cells),
    ]
    if wide:
        parts += [
            f"Where the gap is above 5 %, `auto` with {_WIDE_LIMIT_S:.0f} s:",
            table(
                ["trace", "budget", *(f"{what}, {s:.0f} s" for what in _ENDS for s in _LIMITS_S)],
                [_compared(next(c for c in cells if _case(c) == _case(row)), row) for row in wide],
            ),
        ]
    if least:
        parts += [
            f"The least budget found in {_LEAST_S:.0f} s; floor and bound, by parts of the graph, are "
            "proved.",
            table(
                ["trace", "ops", "floor", "bound", "least budget", "least / bound", "s"],
                [
                    [
                        *(row["trace"], f"{row['ops']:,}"),
                        *(f"{row[name]:.1%}" for name in ("floor", "least_bound", "least")),
                        *(f"{row['least'] / row['least_bound']:.3f}", f"{row['least_s']:.1f}"),
                    ]
                    for row in least
                ],
            ),
        ]
    return "\n\n".join(parts)


def _cells(rows: Sequence[Row]) -> list[Row]:
    """One row for each trace and budget, with the medians of its seeds."""
    cells: dict[tuple[str, float], list[Row]] = {}
    for row in rows:
        cells.setdefault(_case(row), []).append(row)
    return [
        Row(task=mine[0].task, result=mine[0].result | {name: _median(mine, name) for name in _SOLVERS})
        for mine in cells.values()
    ]


def _median(rows: Sequence[Row], solver: str) -> dict[str, Any]:
    """The median of each number of one solver's answers; no schedule counts as infinite."""
    answers = [row[solver] for row in rows if solver in row.result]
    found = {}
    for name in _FIELDS[1:]:
        numbers = [math.inf if answer[name] is None else answer[name] for answer in answers]
        middle = statistics.median(numbers)
        found[name] = None if math.isinf(middle) else middle
    return found


def _case(row: Row) -> tuple[str, float]:
    return row["trace"], row["share"]


def _compared(short: Row, long: Row) -> list[str]:
    """Schedule, bound and gap of one case after the two time limits."""
    ours = short["auto"], long["auto"]
    gaps = [gap_of(answer) for answer in ours]
    return [
        *(long["trace"], f"{long['share']:.0%}"),
        *map(_cost, ours),
        *(f"{answer['bound']:.4f}" for answer in ours),
        *("–" if gap is None else f"{gap:.2%}" for gap in gaps),
    ]


def _line(row: Row) -> list[str]:
    ours, (search, milp) = row["auto"], (row[solver] for solver in _SOLVERS[1:])
    gap = gap_of(ours)
    return [
        *(row["trace"], f"{row['ops']:,}", f"{row['share']:.0%}", f"{row['floor']:.1%}"),
        *(_cost(ours), f"{ours['bound']:.4f}", "–" if gap is None else f"{gap:.2%}"),
        *("–" if ours[name] is None else f"{ours[name]:.2f}" for name in ("first_s", "near_s")),
        *(_cost(search), _cost(milp)),
    ]


def _summary(cells: Sequence[Row]) -> str:
    """How many cases are within each gap, and in how many a part alone did better."""
    lines = []
    shares = sorted({row["share"] for row in cells}, reverse=True)
    groups = [(f"{share:.0%}", [row for row in cells if row["share"] == share]) for share in shares]
    together = [row for row in cells if row["share"] >= _TOGETHER]
    for name, mine in [*groups, (f"≥ {_TOGETHER:.0%}", together)]:
        gaps = [gap for row in mine if (gap := gap_of(row["auto"])) is not None]
        within = [f"{sum(gap <= most for gap in gaps)}" for most in _GAPS]
        median = f"{statistics.median(gaps):.2%}" if gaps else "–"
        better = [[_dearer(row, part) for row in mine].count(True) for part in _SOLVERS[1:]]
        lines.append([name, len(mine), len(gaps), *within, median, *better])
    head = ["budget", "cases", "solved", *(f"gap ≤ {most:.0%}" for most in _GAPS), "median gap"]
    return table([*head, *(f"`{part}` better by > {_SLACK:.1%}" for part in _SOLVERS[1:])], lines)


def _dearer(row: Row, part: str) -> bool:
    """Whether the part alone found a schedule that is cheaper by more than chance."""
    ours, other = row["auto"]["cost"], row[part]["cost"]
    return other is not None and (ours is None or ours > other * (1 + _SLACK))


def _cost(answer: Mapping[str, Any]) -> str:
    return "–" if answer["cost"] is None else f"{answer['cost']:.4f}"


EXPERIMENT = Experiment(
    name="deep",
    title="Deep budgets",
    about="training steps traced op by op, at 35 % of their peak and less",
    tasks=tasks,
    measure=measure,
    markdown=markdown,
    packages=(*SOLVING, "torch", "transformers"),
    needs=("torch", "transformers"),
    seeds=_SEEDS,
    alone=True,
)
"""The experiment."""

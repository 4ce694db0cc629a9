"""Random graphs of up to 30 ops: how many ``auto`` proves optimal, how fast; an oracle checks the tiny."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from checkmate import Solution, Status
from checkmate.plugins import SOLVERS
from checkmate.testing import oracle
from evaluation.experiment import Experiment
from evaluation.results import Results, Task
from pages import table
from zoo.tiny import tiny_problems

__all__ = ["EXPERIMENT"]

_CLASSES = {(4, 14): 40, (15, 30): 4}
"""The number of ops, at least and at most, and how many tasks there are of each."""
_COUNT, _QUICK_COUNT, _QUICK_TASKS = 500, 20, 1
_ORACLE_OPS, _SLOW_S = 14, 0.1


def tasks(quick: bool) -> Sequence[Task]:
    """Problems by their number of ops and the seed that draws them."""
    return [
        {"ops": list(ops), "count": _QUICK_COUNT if quick else _COUNT, "seed": seed}
        for ops, seeds in _CLASSES.items()
        for seed in range(_QUICK_TASKS if quick else seeds)
    ]


def measure(task: Task) -> Mapping[str, Any]:
    """The number of answers of each kind, and the seconds of CPU time for one."""
    auto = SOLVERS.load("auto")
    kinds = {"optimal": 0, "infeasible": 0, "open": 0, "wrong": 0}
    times: list[float] = []
    for problem in tiny_problems(task["count"], task["seed"], tuple(task["ops"])):
        started = time.process_time()
        solution = auto.solve(problem)
        times.append(time.process_time() - started)
        optimum = oracle.optimum(problem) if task["ops"][1] <= _ORACLE_OPS else None
        kinds[_kind(solution, optimum)] += 1
    times.sort()
    return {
        **kinds,
        "slow": sum(seconds > _SLOW_S for seconds in times),
        "median_s": round(times[len(times) // 2], 5),
        "slowest_s": round(times[-1], 3),
    }


def _kind(solution: Solution, optimum: float | None) -> str:
    if optimum is not None and not _is_right(solution, optimum):
        return "wrong"
    return {Status.OPTIMAL: "optimal", Status.INFEASIBLE: "infeasible"}.get(solution.status, "open")


def _is_right(solution: Solution, optimum: float) -> bool:
    match solution.status:
        case Status.OPTIMAL:
            return solution.cost == optimum
        case Status.INFEASIBLE:
            return math.isinf(optimum)
    return solution.bound <= optimum


def markdown(results: Results) -> str:
    """All tasks with the same number of ops together."""
    return table(
        [
            "ops",
            "graphs",
            "solved to the optimum",
            "proved infeasible",
            "left open",
            "wrong",
            f"over {_SLOW_S} s",
            "median, s",
            "slowest, s",
        ],
        [
            _line(ops, [row for row in results.rows if tuple(row["ops"]) == ops])
            for ops in dict.fromkeys(tuple(row["ops"]) for row in results.rows)
        ],
    )


def _line(ops: tuple[int, ...], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    names = ("optimal", "infeasible", "open", "wrong", "slow")
    counts = {name: f"{sum(row[name] for row in rows):,}" for name in names}
    if ops[1] > _ORACLE_OPS:
        counts["wrong"] = "–"
    return [
        f"{ops[0]} to {ops[1]}",
        f"{sum(row['count'] for row in rows):,}",
        *counts.values(),
        f"{sorted(row['median_s'] for row in rows)[len(rows) // 2]:.4f}",
        f"{max(row['slowest_s'] for row in rows):.2f}",
    ]


EXPERIMENT = Experiment(
    name="tiny",
    title="Small graphs, solved to proof",
    about="random graphs of up to 30 ops, the tiny ones beside the exhaustive oracle",
    tasks=tasks,
    measure=measure,
    markdown=markdown,
    packages=("checkmate-core", "checkmate-solvers", "numpy"),
)

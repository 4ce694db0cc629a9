"""Random graphs of up to 14 ops: how many ``auto`` solves to proof, beside the oracle, and how fast."""

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

_COUNT, _TASKS = 500, 40
_QUICK_COUNT, _QUICK_TASKS = 20, 2
_SLOW_S = 0.1


def tasks(quick: bool) -> Sequence[Task]:
    """Problems by the seed that draws them."""
    count, seeds = (_QUICK_COUNT, _QUICK_TASKS) if quick else (_COUNT, _TASKS)
    return [{"count": count, "seed": seed} for seed in range(seeds)]


def measure(task: Task) -> Mapping[str, Any]:
    """The number of answers of each kind, and the seconds of CPU time for one."""
    auto = SOLVERS.load("auto")
    kinds = {"optimal": 0, "infeasible": 0, "open": 0, "wrong": 0}
    times: list[float] = []
    for problem in tiny_problems(task["count"], task["seed"]):
        started = time.process_time()
        solution = auto.solve(problem)
        times.append(time.process_time() - started)
        kinds[_kind(solution, oracle.optimum(problem))] += 1
    times.sort()
    return {
        **kinds,
        "slow": sum(seconds > _SLOW_S for seconds in times),
        "median_s": round(times[len(times) // 2], 5),
        "slowest_s": round(times[-1], 3),
    }


def _kind(solution: Solution, optimum: float) -> str:
    match solution.status:
        case Status.OPTIMAL:
            return "optimal" if solution.cost == optimum else "wrong"
        case Status.INFEASIBLE:
            return "infeasible" if math.isinf(optimum) else "wrong"
    return "open" if solution.bound <= optimum else "wrong"


def markdown(results: Results) -> str:
    """All tasks together."""
    rows = results.rows
    names = ("optimal", "infeasible", "open", "wrong", "slow")
    counts = [sum(row[name] for row in rows) for name in names]
    return table(
        [
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
            [
                f"{sum(row['count'] for row in rows):,}",
                *(f"{count:,}" for count in counts),
                f"{sorted(row['median_s'] for row in rows)[len(rows) // 2]:.4f}",
                f"{max(row['slowest_s'] for row in rows):.2f}",
            ]
        ],
    )


EXPERIMENT = Experiment(
    name="tiny",
    title="Tiny graphs, solved to proof",
    about="random graphs of up to 14 ops beside the exhaustive oracle",
    tasks=tasks,
    measure=measure,
    markdown=markdown,
    packages=("checkmate-core", "checkmate-solvers", "numpy"),
)

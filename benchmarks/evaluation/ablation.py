"""What each step of ``auto`` contributes: each is left out in turn, with the same problems and seed.

A run of all steps with another seed shows the size of chance effects. Seconds are CPU time; the time limit is
wall-clock time, so on a shared core a solve gets fewer CPU seconds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from checkmate import DFGraph, Problem, Progress, generators, keep_all_peak
from checkmate_solvers.auto import STEPS, Auto
from evaluation.cases import GENERATED
from evaluation.experiment import Experiment
from evaluation.results import Results, Row, Task
from pages import table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT"]

_TOGETHER: Mapping[str, tuple[str, ...]] = {
    "all local search": ("first-cycle", "local-search"),
    "all bounds": ("chains", "first-cut", "min-cut", "cut-milp"),
}
_CASES: Mapping[str, float] = {
    "chain32-random": 0.3,
    "unet4": 0.385,
    "layered60-training": 0.3,
    "residual16": 0.3,
    "transformer12": 0.5,
    "rl1": 0.7,
    "rl2": 0.7,
    "residual64": 0.3,
    "zoo/unet": 0.6,
    "zoo/resnet50": 0.4,
}
"""Graphs of :mod:`evaluation.cases`, and of the zoo layer by layer; budgets as shares of the peak."""
_QUICK: Mapping[str, float] = {"chain32-random": 0.3, "residual16": 0.3}
_QUICK_STEPS = ("min-cut", "cut-milp", "local-search")
_LIMIT_S, _QUICK_LIMIT_S = 3.0, 1.5
_WARM_S = 1.0


def tasks(quick: bool) -> Sequence[Task]:
    """All steps twice, then each left out, then some together; for each case."""
    steps = _QUICK_STEPS if quick else STEPS
    left_out = [(), *((step,) for step in steps), *_TOGETHER.values()]
    return [
        {"graph": graph, "share": share, "without": list(without), "seed": seed}
        | {"time_limit": _QUICK_LIMIT_S if quick else _LIMIT_S}
        for graph, share in (_QUICK if quick else _CASES).items()
        for without, seed in [((), 1), *((without, 0) for without in left_out)]
    ]


def measure(task: Task) -> Mapping[str, Any]:
    """Cost and bound relative to computing every op once, and CPU seconds."""
    _warm()
    graph, times = _graph(task["graph"]), []
    started = time.process_time()

    def listen(report: Progress) -> None:
        if report.incumbent is not None:
            times.append(time.process_time() - started)

    problem = Problem(
        graph=graph,
        budget=int(task["share"] * keep_all_peak(graph)),
        time_limit=task["time_limit"],
        seed=task["seed"],
        on_progress=listen,
    )
    found = Auto(without=tuple(task["without"])).solve(problem)
    return {
        "ops": graph.n_ops,
        "cost": None if found.schedule is None else found.cost / graph.ideal_cost,
        "bound": found.bound / graph.ideal_cost,
        "first_s": round(times[0], 4) if times else None,
        "cpu_s": round(time.process_time() - started, 4),
        "origin": dict(found.origin),
    }


@cache
def _graph(name: str) -> DFGraph:
    network = name.removeprefix("zoo/")
    if network == name:
        return GENERATED[name]()
    import zoo

    return zoo.graph(network, level="layer")


@cache
def _warm() -> None:
    """Import what the steps need, once in each process."""
    for layers in (8, 60):
        graph = generators.chain(layers)
        Auto().solve(Problem(graph=graph, budget=keep_all_peak(graph) // 2, time_limit=_WARM_S))


def markdown(results: Results) -> str:
    """A line for each omitted step, over all cases; then all steps case by case."""
    every = {_case(row): row for row in results.rows if _said(row) == _ALL}
    lines = [[said, *_line(rows, every)] for said, rows in _by_variant(results).items()]
    cases = [[*case, row["ops"], *_own(row)] for case, row in every.items()]
    return "\n\n".join(
        (
            "One line for each omitted step. Cost: relative to that of all steps on the same case, so 1 "
            "means no loss (geometric mean, worst case, and that case). None found: cases without a "
            "schedule. Gap: (cost − bound) / cost. CPU seconds: to the first schedule (geometric mean), "
            "and to the end, by itself or at the limit.",
            table(
                [
                    "left out",
                    "cost, mean",
                    "cost, worst",
                    "in",
                    "none found",
                    "gap, mean",
                    "first s",
                    "s, mean",
                ],
                lines,
            ),
            "All steps, case by case; cost relative to computing every op once:",
            table(["graph", "budget", "ops", "cost", "gap", "CPU s"], cases),
        )
    )


def draw(results: Results) -> Figure | None:
    """Extra cost and gap, by omitted step."""
    from matplotlib.figure import Figure

    every = {_case(row): row for row in results.rows if _said(row) == _ALL}
    variants = _by_variant(results)
    figure = Figure(figsize=(9, 0.32 * len(variants) + 1.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for place, rows in enumerate(variants.values()):
        ratios = list(_ratios(rows, every).values())
        if ratios:
            left.barh(place, 100 * (statistics.geometric_mean(ratios) - 1), color="C0")
            left.plot([100 * (r - 1) for r in ratios], [place] * len(ratios), "k.", markersize=3)
            right.barh(place, 100 * statistics.fmean(_gaps(rows)), color="C1")
    left.set_yticks(range(len(variants)), list(variants))
    left.invert_yaxis()
    left.set_xscale("symlog", linthresh=0.1)
    left.set_xlabel("extra cost, %: mean, and each case")
    right.set_xlabel("mean gap, %")
    return figure


_ALL, _OTHER_SEED = "nothing", "nothing, another seed"


def _said(row: Row) -> str:
    """The omitted steps, as a text."""
    if not row["without"]:
        return _OTHER_SEED if row["seed"] else _ALL
    together = {steps: name for name, steps in _TOGETHER.items()}
    return together.get(tuple(row["without"]), ", ".join(row["without"]))


def _case(row: Row) -> tuple[str, str]:
    return row["graph"], f"{row['share']:.1%}"


def _by_variant(results: Results) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {_ALL: [], _OTHER_SEED: []}
    for row in results.where():
        found.setdefault(_said(row), []).append(row)
    return {said: rows for said, rows in found.items() if rows}


def _ratios(rows: Sequence[Row], every: Mapping[tuple[str, str], Row]) -> dict[str, float]:
    """By case: cost over that of all steps, where both found a schedule."""
    found = {}
    for row in rows:
        whole = every.get(_case(row))
        if whole is not None and whole["cost"] is not None and row["cost"] is not None:
            found[" at ".join(_case(row))] = row["cost"] / whole["cost"]
    return found


def _gaps(rows: Sequence[Row]) -> list[float]:
    return [1 - row["bound"] / row["cost"] for row in rows if row["cost"] is not None]


def _line(rows: Sequence[Row], every: Mapping[tuple[str, str], Row]) -> list[Any]:
    ratios = _ratios(rows, every)
    none = sum(row["cost"] is None for row in rows)
    if not ratios:
        return ["–", "–", "–", none, "–", "–", "–"]
    worst = max(ratios, key=lambda case: ratios[case])
    firsts = [max(row["first_s"], 1e-4) for row in rows if row["first_s"] is not None]
    return [
        f"{statistics.geometric_mean(ratios.values()):.5f}",
        f"{ratios[worst]:.4f}",
        worst if ratios[worst] > 1 + _SAME else "–",
        none,
        f"{statistics.fmean(_gaps(rows)):.3%}",
        f"{statistics.geometric_mean(firsts):.3f}",
        f"{statistics.fmean(row['cpu_s'] for row in rows):.2f}",
    ]


_SAME = 5e-5


def _own(row: Row) -> list[str]:
    if row["cost"] is None:
        return ["–", "–", f"{row['cpu_s']:.2f}"]
    return [f"{row['cost']:.5f}", f"{1 - row['bound'] / row['cost']:.3%}", f"{row['cpu_s']:.2f}"]


EXPERIMENT = Experiment(
    name="ablation",
    title="The effect of each step of auto",
    about="each step of auto left out in turn: cost, gap, time",
    tasks=tasks,
    measure=measure,
    markdown=markdown,
    draw=draw,
    seeds=(0, 1),
    alone=True,
)
"""The experiment."""

"""R matrices: the ops that each method computes in each stage, at its largest batch.

Figure 7 of Jain et al., "Checkmate", MLSys 2020. Row t of R is the stage that ends with the first run of op
t, column i an op: the diagonal is the step itself, and ops below it are recomputed. The batch is the
largest whose schedule fits the budget and costs at most one more forward pass,

    cost ≤ 2 · Σ forward + Σ backward                                                          (10)

and the budget includes parameters and their gradients, once for every method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import zoo
from checkmate import Plan
from evaluation.experiment import Experiment
from evaluation.largest_batch import Search, simulated
from evaluation.results import Results, Row, Task
from machine import SOLVING
from pages import table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT"]

_SOLVERS = (
    *("keep-all", "chen-sqrt-n-ap", "chen-greedy-ap", "revolve"),
    *("lp-rounding", "evict-dtr", "retention-intervals", "auto"),
)
_FULL = {"network": "vgg19", "small": False, "budget": 16_000_000_000, "time_limit": 20.0}
_QUICK = {"network": "vgg19", "small": True, "budget": 64_000_000, "time_limit": 2.0}
_ACROSS = 4


def tasks(quick: bool) -> Sequence[Task]:
    """The largest batch of each solver."""
    if quick:
        return [{**_QUICK, "solver": solver} for solver in ("keep-all", "chen-greedy-ap", "auto")]
    return [{**_FULL, "solver": solver} for solver in _SOLVERS]


def measure(task: Task) -> Mapping[str, Any]:
    """The batch, and the ops of each stage of its schedule."""
    network, small = task["network"], task["small"]
    search = Search.of(network, solver=task["solver"], time_limit=task["time_limit"], small=small)
    best, impossible = search.largest(task["budget"] - search.graph.fixed_size)
    if not best or search.schedule is None:
        return {"batch": 0, "proved": impossible == 1}
    graph = zoo.graph(network, batch=best, small=small)
    timeline = simulated(graph, search.schedule, task["budget"])
    return {
        "batch": best,
        "proved": impossible == best + 1,
        "cost": 1 + timeline.overhead,
        "peak": timeline.peak,
        "ops": graph.n_ops,
        "forward": next(i for i, op in enumerate(graph.ops) if op.backward),
        "stages": [np.flatnonzero(row).tolist() for row in Plan.of(graph, search.schedule).compute],
    }


def markdown(results: Results) -> str:
    """A line for each method."""
    head = ["solver", "largest batch", "larger is impossible", "overhead, %", "peak, GB", "ops run again"]
    lines = []
    for row in results.where():
        numbers = ["–"] * 3
        if row["batch"]:
            again = sum(map(len, row["stages"])) - row["ops"]
            numbers = [f"{100 * (row['cost'] - 1):.1f}", f"{row['peak'] / 1e9:.2f}", str(again)]
        lines.append([row["solver"], row["batch"], "proved" if row["proved"] else "", *numbers])
    said = (
        "One line for each method: its largest batch within the budget, whether a larger one is proved "
        "impossible, and overhead, peak and recomputed ops of its schedule at that batch."
    )
    return f"{said}\n\n{table(head, lines)}"


def draw(results: Results) -> Figure:
    """R of each method: first runs dark, recomputations in orange."""
    from matplotlib.figure import Figure

    shown = [row for row in results.where() if row["batch"]]
    across = min(_ACROSS, max(len(shown), 1))
    down = max(-(-len(shown) // across), 1)
    figure = Figure(figsize=(3.3 * across, 3.6 * down), layout="constrained")
    places = list(figure.subplots(down, across, squeeze=False).flat)
    for axes, row in zip(places, shown, strict=False):
        axes.imshow(_picture(row), interpolation="nearest", aspect="auto")
        axes.axvline(row["forward"] - 0.5, color="0.6", linewidth=0.8)
        axes.set_title(
            f"{row['solver']}\nbatch {row['batch']}, +{100 * (row['cost'] - 1):.0f} %", fontsize=10
        )
        axes.set(xlabel="op", ylabel="stage")
    for axes in places[len(shown) :]:
        axes.set_axis_off()
    return figure


def _picture(row: Row) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Red, green and blue of each cell of R."""
    image = np.ones((len(row["stages"]), row["ops"], 3))
    seen: set[int] = set()
    for stage, ops in enumerate(row["stages"]):
        for op in ops:
            image[stage, op] = (0.85, 0.46, 0.18) if op in seen else (0.14, 0.26, 0.37)
        seen.update(ops)
    return image


EXPERIMENT = Experiment(
    name="matrices",
    title="Schedules as pictures",
    about="recomputation in VGG19 at its largest batch, by method (paper, figure 7)",
    tasks=tasks,
    measure=measure,
    markdown=markdown,
    draw=draw,
    packages=(*SOLVING, "torch"),
    needs=("torch",),
)

"""R matrices: what each method computes in each stage, at the largest batch that it can train.

Figure 7 of Jain et al., "Checkmate", MLSys 2020. Row t of R is the stage that ends with the first run of op
t, column i an op: the diagonal is the step itself, what stands below it is recomputed. The batch is the
largest whose schedule fits the budget and costs at most one more forward pass,

    cost ≤ 2 · Σ forward + Σ backward                                                          (10)

and the budget holds parameters and their gradients, once, whatever the method.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import zoo
from checkmate import Plan, Solution, solve
from evaluation.experiment import Experiment, Task
from evaluation.largest_batch import most_cost
from evaluation.results import Results, Row
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
_MOST = 4096
"""Examples in a batch: more are not tried."""
_ACROSS = 4


def tasks(quick: bool) -> Sequence[Task]:
    """The largest batch of each solver."""
    if quick:
        return [{**_QUICK, "solver": solver} for solver in ("keep-all", "chen-greedy-ap", "auto")]
    return [{**_FULL, "solver": solver} for solver in _SOLVERS]


def measure(task: Task) -> Mapping[str, Any]:
    """The batch, and the ops of each stage of its schedule."""
    network, small, budget = task["network"], task["small"], task["budget"]

    def asked(batch: int) -> Solution:
        graph = zoo.graph(network, batch=batch, small=small)
        return solve(graph, budget, solver=task["solver"], time_limit=task["time_limit"], throw=False)

    best, above = _largest(lambda batch: _within(asked(batch)))
    if best == 0:
        return {"batch": 0, "proved": False}
    found, beyond = asked(best), asked(above)
    assert found.schedule is not None
    graph = found.problem.graph
    plan = Plan.of(graph, found.schedule)
    return {
        "batch": best,
        "proved": beyond.bound > most_cost(beyond.problem.graph),
        "cost": found.cost / float(graph.costs.sum()),
        "peak": found.peak,
        "ops": graph.n_ops,
        "forward": next(i for i, op in enumerate(graph.ops) if op.backward),
        "stages": [np.flatnonzero(row).tolist() for row in plan.compute],
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
    return table(head, lines)


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


def _largest(works: Callable[[int], bool]) -> tuple[int, int]:
    """The largest batch that works, by doubling and halving, and the next one; (0, 1) if none does."""
    low, high = 0, 1
    while high < _MOST and works(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if works(middle) else (low, middle)
    return low, high


def _within(found: Solution) -> bool:
    return found.schedule is not None and found.cost <= most_cost(found.problem.graph)


EXPERIMENT = Experiment(
    name="matrices",
    title="Schedules as pictures",
    about="what VGG19's largest batch recomputes, by method (paper, figure 7)",
    tasks=tasks,
    measure=measure,
    markdown=markdown,
    draw=draw,
    packages=(*SOLVING, "torch"),
    needs=("torch",),
)

"""Overhead against budget (figure 5 of the paper): what each solver pays, from plenty to the least."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from checkmate import DFGraph, generators, keep_all_peak, solve
from evaluation.experiment import Experiment, Task
from evaluation.pages import table
from evaluation.results import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT"]

_SOLVERS = ("auto", "chen-greedy", "chen-sqrt-n")


def tasks(quick: bool) -> Sequence[Task]:
    """Each solver at each budget."""
    shares = (0.6, 0.4) if quick else (0.8, 0.7, 0.6, 0.5, 0.4)
    return [
        {"network": "unet", "share": share, "solver": solver, "time_limit": 2.0}
        for share in shares
        for solver in _SOLVERS
    ]


def measure(task: Task) -> Mapping[str, Any]:
    """Cost of a schedule over that of computing every op once."""
    graph = _graph(task["network"])
    budget = int(task["share"] * keep_all_peak(graph))
    found = solve(graph, budget, solver=task["solver"], time_limit=task["time_limit"], throw=False)
    return {"status": found.status.value, "overhead": found.overhead if found.schedule else None}


def markdown(results: Results) -> str:
    """A line for each budget."""
    solvers = results.distinct("solver")
    rows = [
        [f"{share:.0%}", *(_cell(results, share, solver) for solver in solvers)]
        for share in results.distinct("share")
    ]
    return table(["budget", *solvers], rows)


def draw(results: Results) -> Figure:
    """Overhead over budget."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.5), layout="constrained")
    axes = figure.subplots()
    for solver in results.distinct("solver"):
        points = sorted(
            (r["share"], r["overhead"]) for r in results.where(solver=solver) if r["overhead"] is not None
        )
        axes.plot([100 * share for share, _ in points], [100 * over for _, over in points], label=solver)
    axes.legend()
    return figure


def _graph(name: str) -> DFGraph:
    return {"unet": generators.unet}[name](3)


def _cell(results: Results, share: float, solver: str) -> str:
    found = [row["overhead"] for row in results.where(share=share, solver=solver)]
    return "–" if not found or found[0] is None else f"{found[0]:.1%}"


EXPERIMENT = Experiment(
    name="overhead",
    title="Overhead against budget",
    about="what each solver pays at each budget (paper, figure 5)",
    tasks=tasks,
    measure=measure,
    markdown=markdown,
    draw=draw,
)

"""Overhead against budget: the cost of each solver's schedules, from plenty of memory to the floor.

Figure 5 of Jain et al., "Checkmate", MLSys 2020. The budgets are

    budget(k) = floor + k/8 · (peak without recomputation − floor),   k = 0 … 8

so that k = 8 needs no recomputation, and no schedule exists below k = 0. Costs are relative to
computing every op once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import zoo
from checkmate import floor, keep_all_peak, solve
from checkmate.plugins import Solver
from evaluation.experiment import Experiment
from evaluation.results import Results, Row, Task
from machine import SOLVING
from pages import table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT", "PAPER_LP", "best_at", "panels", "proved_at", "title_of"]

PAPER_LP = "lp-rounding, no repair"
"""Two-phase rounding as published: a result over the budget counts as none."""

_RULES = (
    *("keep-all", "checkpoint-last", "chen-sqrt-n", "chen-greedy", "chen-sqrt-n-ap", "chen-greedy-ap"),
    *("revolve", "chain-dp", "evict-belady", "evict-dtr"),
)
_SOLVERS = (*_RULES, PAPER_LP, "lp-rounding", "checkmate-milp", "retention-intervals", "auto")
_LARGE = (*_RULES[:6], "evict-belady", "evict-dtr", "retention-intervals", "auto")
"""For graphs of hundreds of ops that are no chains: programs over stages are too large there."""
_TIME_LIMIT = {"auto": 30.0, "checkmate-milp": 30.0}
_BRIEFLY = 20.0
"""Seconds for all others; the rules take less than one."""

_PUBLISHED: Mapping[str, float] = {"auto": 1.0231, "chen-greedy": 1.2313, "chen-sqrt-n": 1.4125}
_PUBLISHED_SHARE = 0.759
"""U-Net in 16 GB, figure 5: the optimum, linearized greedy and linearized √n; budget as a share of the peak
without recomputation."""

_MEANING = (
    "Each row is a solver, each column a budget and its share of the peak without recomputation. 0.00 is "
    "free of recomputation; “–” means no schedule within the time limit; the last row is the best proved "
    "lower bound, “impossible” if no schedule exists."
)
_ACROSS, _LOWEST, _HIGHEST, _MARKERS = 3, -1.5, 60.0, "osD^vPX*<>hpd8"
"""Of the picture: panels in a row, percent at the ends of the axis, one marker for each solver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Panel:
    """A network, with its budgets and solvers."""

    network: str
    batch: int
    level: zoo.Level = "layer"
    small: bool = False
    eighths: tuple[int, ...] = (8, 7, 6, 5, 4, 3, 2, 1, 0)
    solvers: tuple[str, ...] = _SOLVERS


_FIGURE = (
    _Panel(network="vgg16", batch=256),
    _Panel(network="mobilenet", batch=512),
    _Panel(network="unet", batch=32),
    _Panel(network="resnet50", batch=256, level="op", solvers=_LARGE),
    _Panel(network="gpt2", batch=8, level="op", solvers=_LARGE),
)
_FURTHER = (  # of table 2, and two more
    _Panel(network="vgg19", batch=256, eighths=(8, 6, 4, 2, 1, 0)),
    _Panel(network="resnet50", batch=256, eighths=(8, 6, 4, 2, 1, 0), solvers=_LARGE),
    _Panel(network="fcn8", batch=32, eighths=(8, 6, 4, 2, 1, 0)),
    _Panel(network="segnet", batch=32, eighths=(8, 6, 4, 2, 1, 0)),
)
_QUICK = (
    _Panel(network="vgg16", batch=8, small=True, eighths=(8, 4, 1)),
    _Panel(network="unet", batch=2, small=True, eighths=(8, 4, 1)),
    _Panel(network="gpt2", batch=2, level="op", small=True, eighths=(4, 1), solvers=_LARGE),
)


def tasks(quick: bool) -> Sequence[Task]:
    """Each solver on each network at each budget; ``keep-all`` at the largest only."""
    found = []
    for panel in _QUICK if quick else (*_FIGURE, *_FURTHER):
        about = asdict(panel)
        asked, solvers = about.pop("eighths"), about.pop("solvers")
        found += [
            {**about, "eighths": k, "solver": solver, "time_limit": _seconds(solver, quick)}
            for k in asked
            for solver in solvers
            if solver != "keep-all" or k == 8
        ]
    return found


def measure(task: Task) -> Mapping[str, Any]:
    """Cost, bound and peak of the solver's schedule, simulated; facts about the graph."""
    graph = zoo.graph(task["network"], level=task["level"], batch=task["batch"], small=task["small"])
    least, most = floor(graph).size, keep_all_peak(graph)
    budget = least + (most - least) * task["eighths"] // 8
    once = float(graph.costs.sum())
    found = solve(graph, budget, solver=_solver(task["solver"]), time_limit=task["time_limit"], throw=False)
    return {
        "status": found.status.value,
        "cost": found.cost / once if found.schedule else None,
        "bound": found.bound / once if found.bound < math.inf else None,
        "peak": found.peak,
        "origin": dict(found.origin),
        "budget": budget,
        "floor": least,
        "keep_all": most,
        "fixed": graph.base_size,
        "ops": graph.n_ops,
        "digest": graph.digest,
    }


def markdown(results: Results) -> str:
    """For each network, a line for each solver and a column for each budget; then the paper's figures."""
    every = panels(results)
    return "\n\n".join(
        [_MEANING, *map(_table, every), *(_beside_published(rows) for rows in every if _is_papers(rows))]
    )


def draw(results: Results) -> Figure:
    """A panel for each network, cut off at 60 % of overhead."""
    from matplotlib.figure import Figure

    shown = panels(results)
    down = -(-len(shown) // _ACROSS)
    figure = Figure(figsize=(4.6 * _ACROSS, 3.4 * down + 0.8), layout="constrained")
    places = list(figure.subplots(down, _ACROSS, squeeze=False).flat)
    solvers = [solver for solver in results.distinct("solver") if solver != "keep-all"]
    for axes, rows in zip(places, shown, strict=False):
        _lines(axes, rows, solvers)
        budgets = sorted(row["budget"] for row in rows)
        heights = [min(100 * (proved_at(rows, budget) - 1), _HIGHEST) for budget in budgets]
        axes.fill_between(
            [budget / 1e9 for budget in budgets],
            heights,
            _LOWEST,
            step="pre",  # a bound for a budget holds for smaller ones
            color="0.8",
            label="proved impossible",
        )
        axes.set(title=title_of(rows[0]), xlabel="budget, GB", ylabel="overhead, %")
        axes.set_ylim(_LOWEST, _HIGHEST)
        axes.grid(alpha=0.3)
    for axes in places[len(shown) :]:
        axes.set_axis_off()
    lines = {line.get_label(): line for axes in places for line in axes.get_legend_handles_labels()[0]}
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=7)
    return figure


def _lines(axes: Axes, rows: Sequence[Row], solvers: Sequence[str]) -> None:
    """A line for each solver; a budget without a schedule has no point."""
    for number, solver in enumerate(solvers):
        found = [row for row in rows if row["solver"] == solver and row["cost"] is not None]
        points = sorted((row["budget"] / 1e9, 100 * (row["cost"] - 1)) for row in found)
        axes.plot(
            [budget for budget, _ in points],
            [overhead for _, overhead in points],
            color=f"C{number % 10}",
            marker=_MARKERS[number % len(_MARKERS)],
            markersize=4,
            linewidth=2.4 if solver == "auto" else 1.0,
            label=solver,
        )


def panels(results: Results) -> list[list[Row]]:
    """The rows of each network, by its name, level, batch, and whether it is a small one."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in results.where():
        found.setdefault(tuple(row[name] for name in ("network", "level", "batch", "small")), []).append(row)
    return list(found.values())


def title_of(row: Row) -> str:
    """The title of a network: name, level, batch and ops."""
    which = ", op by op" * (row["level"] == "op") + ", small" * row["small"]
    return f"{zoo.NETWORKS[row['network']].title}{which}, batch {row['batch']}, {row['ops']} ops"


def best_at(rows: Sequence[Row], budget: int) -> float:
    """The least cost that any solver found with a peak within the budget; infinite if none did."""
    return min((row["cost"] for row in rows if row["cost"] and row["peak"] <= budget), default=math.inf)


def proved_at(rows: Sequence[Row], budget: int) -> float:
    """The largest bound that any solver proved for this budget or a larger one; infinite: no schedule."""
    asked = [row for row in rows if row["budget"] >= budget]
    if any(row["status"] == "infeasible" for row in asked):
        return math.inf
    return max((row["bound"] for row in asked), default=1.0)


def _table(rows: Sequence[Row]) -> str:
    budgets = sorted({row["budget"] for row in rows}, reverse=True)
    peak, fixed = rows[0]["keep_all"], rows[0]["fixed"]
    lines = []
    for solver in dict.fromkeys(row["solver"] for row in rows):
        found = {row["budget"]: row["cost"] for row in rows if row["solver"] == solver}
        lines.append([solver, *(_cell(found.get(budget)) for budget in budgets)])
    lines.append(["*proved, at least*", *(_cell(proved_at(rows, budget)) for budget in budgets)])
    head = [f"{budget / 1e9:.3g} GB, {budget / peak:.0%}" for budget in budgets]
    about = f"{fixed / 1e9:.3g} GB are always held. Overhead in percent:"
    return f"### {title_of(rows[0])}\n\n{about}\n\n{table(['solver', *head], lines)}"


def _is_papers(rows: Sequence[Row]) -> bool:
    about = rows[0]
    return (about["network"], about["level"], about["batch"], about["small"]) == ("unet", "layer", 32, False)


def _beside_published(rows: Sequence[Row]) -> str:
    """The budget whose share of the peak without recomputation is nearest to that of the paper's 16 GB."""
    peak = rows[0]["keep_all"]
    budget = min({row["budget"] for row in rows}, key=lambda size: abs(size / peak - _PUBLISHED_SHARE))
    ours = {row["solver"]: row["cost"] for row in rows if row["budget"] == budget and row["cost"]}
    best = best_at(rows, budget)
    lines = [
        [
            solver,
            f"{cost:.4f}",
            f"{cost / _PUBLISHED['auto']:.2f}",
            f"{ours[solver]:.4f}",
            f"{ours[solver] / best:.2f}",
        ]
        for solver, cost in _PUBLISHED.items()
        if solver in ours
    ]
    head = ["solver", f"published, 16 GB, {_PUBLISHED_SHARE:.0%}", "/ optimum"]
    head += [f"here, {budget / 1e9:.3g} GB, {budget / peak:.0%}", "/ optimum"]
    return (
        "### U-Net beside the paper\n\n"
        "Cost relative to computing every op once, and over the optimum; budgets as "
        f"shares of the peak without recomputation.\n\n{table(head, lines)}"
    )


def _cell(cost: float | None) -> str:
    if cost is None:
        return "–"
    return "impossible" if math.isinf(cost) else f"{100 * (cost - 1):.2f}"


def _seconds(solver: str, quick: bool) -> float:
    return 3.0 if quick else _TIME_LIMIT.get(solver, _BRIEFLY)


def _solver(name: str) -> str | Solver:
    if name != PAPER_LP:
        return name
    from checkmate_solvers.literature.lp_rounding import LpRounding

    return LpRounding(repair=False)


EXPERIMENT = Experiment(
    name="overhead",
    title="Overhead against budget",
    about="overhead of each solver at each budget (paper, figure 5)",
    tasks=tasks,
    measure=measure,
    markdown=markdown,
    draw=draw,
    packages=(*SOLVING, "torch"),
    needs=("torch",),
)

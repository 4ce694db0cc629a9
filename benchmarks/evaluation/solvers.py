"""The solver benchmark: solvers side by side on generated graphs, or on a folder of graph files.

Cost, proved bound, gap, and the time to the first schedule and to the final one; each solve has a fresh
process on one core (:mod:`evaluation.solving`), imports and compilation done before the clock starts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checkmate import read_graph
from evaluation.cases import GENERATED, SHARES
from evaluation.experiment import Experiment
from evaluation.goals import OURS, findings, gap_of
from evaluation.published import KINDS, LAYERED, RATIOS
from evaluation.results import Results, Row, Task
from evaluation.solving import solved
from pages import table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT", "SOLVERS", "tasks_of"]

SOLVERS = (
    *("auto", "checkmate-milp", "retention-intervals", "lp-rounding", "evict-dtr"),
    *("chen-sqrt-n-ap", "chen-greedy", "chen-greedy-ap"),
)
_BESIDE = ("checkmate-milp", "retention-intervals", "lp-rounding")
_QUICK, _QUICK_SOLVERS = ("chain8", "unet4", "rl1"), ("auto", "retention-intervals", "chen-greedy")
_LIMIT_S, _QUICK_LIMIT_S, _LATE_S = 10.0, 1.0, 20.0
_NONE = "–"
_MARKERS, _ACROSS = "osv^Dd<>pPX*h", 3


def tasks(quick: bool) -> Sequence[Task]:
    """Each solver on each graph at each budget."""
    return [
        {
            "graph": graph,
            "share": share,
            "solver": solver,
            "time_limit": _QUICK_LIMIT_S if quick else _LIMIT_S,
        }
        for graph in (_QUICK if quick else SHARES)
        for share in SHARES[graph][: 1 if quick else None]
        for solver in (_QUICK_SOLVERS if quick else SOLVERS)
    ]


def tasks_of(
    folder: Path, shares: Sequence[float], solvers: Sequence[str], time_limit: float, *, fixed_order: bool
) -> Sequence[Task]:
    """Each solver on each graph file of a folder at each budget.

    Args:
        folder: of graph files, ``NAME.json``.
        shares: budgets, as shares of the peak without recomputation.
        solvers: names, or ``module:Class``.
        time_limit: seconds.
        fixed_order: whether first runs of ops keep the graph's order.
    """
    return [
        {"graph": file.stem, "file": str(file), "share": share, "solver": solver, "time_limit": time_limit}
        | ({"fixed_order": True} if fixed_order else {})
        for file in sorted(folder.glob("*.json"))
        for share in shares
        for solver in solvers
    ]


def measure(task: Task) -> Mapping[str, Any]:
    """One solve, and whether the graph is a training step."""
    graph = read_graph(Path(task["file"])) if "file" in task else GENERATED[task["graph"]]()
    found = solved(
        graph,
        task["share"],
        task["solver"],
        time_limit=task["time_limit"],
        late_s=_LATE_S,
        clock="wall",
        fixed_order=task.get("fixed_order", False),
    )
    return found | {"training": any(op.backward for op in graph.ops), "digest": graph.digest}


def markdown(results: Results) -> str:
    """Case by case, beside published figures, over the best cost, and the goals."""
    parts = [
        "### Case by case",
        f"One line for each graph and budget (share of the peak without recomputation). For `{OURS}`: cost "
        "relative to computing every op once, proved gap, and wall seconds to the first schedule, to one "
        "within 1 % of the final cost, and to the final one. For the others: cost, and seconds to it in "
        "parentheses; “none found”: no schedule within the time limit.",
        _by_case(results),
    ]
    if layered := _layered(results):
        parts += [
            "### Random layered graphs",
            "Extra cost over computing every op once. Compare kinds of graphs, not single figures: the "
            "published graphs are not ours.",
            layered,
        ]
    parts += [
        "### Cost over the best known cost",
        "Of each solver's schedules: cost divided by the least cost that any solver found for that case; 1 "
        "is best.",
        _ratios(results),
        "### Goals",
        "Targets set in advance, and the figures that decide them.",
        table(
            ["goal", "", "figures"],
            [
                [goal, "reached" if reached else "missed", figures]
                for goal, reached, figures in findings(results)
                if reached is not None
            ],
        ),
        f"Time limit {' or '.join(f'{s:g}' for s in results.distinct('time_limit'))} s; each solve in a "
        "process of its own, on one core.",
    ]
    return "\n\n".join(parts)


def draw(results: Results) -> Figure | None:
    """Extra cost against budget, a panel for each graph."""
    from matplotlib.figure import Figure

    graphs, solvers = results.distinct("graph"), results.distinct("solver")
    if not graphs:
        return None
    down = -(-len(graphs) // _ACROSS)
    figure = Figure(figsize=(4.2 * _ACROSS, 3.1 * down + 0.6), layout="constrained")
    panels = list(figure.subplots(down, _ACROSS, squeeze=False).flat)
    for panel, graph in zip(panels, graphs, strict=False):
        for number, solver in enumerate(solvers):
            points = sorted(
                (100 * row["share"], 100 * (row["cost"] - 1))
                for row in results.where(graph=graph, solver=solver)
                if row["cost"] is not None
            )
            width = 2.2 if solver == OURS else 1.0
            x, y = zip(*points, strict=True) if points else ((), ())
            panel.plot(
                x, y, marker=_MARKERS[number % len(_MARKERS)], markersize=4, linewidth=width, label=solver
            )
        panel.set_yscale("symlog", linthresh=1.0)
        panel.set_ylim(bottom=0.0)
        panel.set(title=graph, xlabel="budget, % of the peak", ylabel="extra cost, %")
        panel.grid(alpha=0.25)
    for panel in panels[len(graphs) :]:
        panel.set_axis_off()
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=8, fontsize="small"
    )
    return figure


def _cases(results: Results) -> dict[tuple[str, float], dict[str, Row]]:
    """By graph and share: the row of each solver."""
    found: dict[tuple[str, float], dict[str, Row]] = {}
    for row in results.where():
        found.setdefault((row["graph"], row["share"]), {})[row["solver"]] = row
    return found


def _by_case(results: Results) -> str:
    cases = _cases(results)
    beside = [s for s in _BESIDE if any(s in rows for rows in cases.values())]
    lines = []
    for (graph, share), rows in cases.items():
        ours = rows.get(OURS)
        gap = None if ours is None else gap_of(ours)
        times = [None if ours is None else ours[name] for name in ("first_s", "near_s", "final_s")]
        figures = [_answer(ours), _number(None if gap is None else 100 * gap, 3)]
        figures += [_number(seconds, 3) for seconds in times]
        figures += [_answer(rows.get(s), seconds=True) for s in beside]
        lines.append([graph, next(iter(rows.values()))["ops"], f"{share:.0%}", *figures])
    head = ["graph", "ops", "budget", OURS, "gap %", "first s", "1 % s", "final s", *beside]
    return table(head, lines)


def _layered(results: Results) -> str:
    lines = []
    for (graph, share), rows in _cases(results).items():
        kind = KINDS.get(graph)
        if kind is None or OURS not in rows:
            continue
        cost = rows[OURS]["cost"]
        theirs = [figures.get((kind, share)) for figures in LAYERED.values()]
        published = [_NONE if one is None else f"{one.percent:g} % in {one.took}" for one in theirs]
        ours = _NONE if cost is None else f"{100 * (cost - 1):.2f} %"
        lines.append([graph, kind, f"{share:.0%}", ours, *published])
    head = ["graph", "of the kind", "budget", f"{OURS}, extra cost"]
    return table([*head, *(f"{s}, on its own graph" for s in LAYERED)], lines) if lines else ""


def _ratios(results: Results) -> str:
    cases, lines = _cases(results), []
    for solver in results.distinct("solver"):
        asked = [rows for rows in cases.values() if solver in rows]
        ratios = []
        for rows in asked:
            costs = [row["cost"] for row in rows.values() if row["cost"] is not None]
            if rows[solver]["cost"] is not None:
                ratios.append(rows[solver]["cost"] / min(costs))
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None
        figures = [_number(mean, 3), _number(max(ratios, default=None), 3)]
        lines.append(
            [solver, f"{len(ratios)} of {len(asked)}", *figures, "; ".join(RATIOS.get(solver, [_NONE]))]
        )
    head = ["solver", "cases solved", "geometric mean", "largest", "published for Checkmate's own graphs"]
    return table(head, lines)


def _answer(row: Row | None, *, seconds: bool = False) -> str:
    """A cost, and the seconds to it; or the outcome without a schedule."""
    if row is None or row["ended"] == "not installed":
        return _NONE
    if row["cost"] is None:
        return "none found" if row["ended"] == "unknown" else str(row["ended"])
    return f"{row['cost']:.5f}" + (f" ({_number(row['final_s'], 2)})" if seconds else "")


def _number(value: float | None, digits: int) -> str:
    return _NONE if value is None else f"{value:.{digits}f}"


EXPERIMENT = Experiment(
    name="solvers",
    title="Solvers side by side",
    about="cost, proved bound and time of each solver on generated graphs",
    tasks=tasks,
    measure=measure,
    markdown=markdown,
    draw=draw,
    alone=True,
)

"""The results as two pictures: cost against budget for each graph, gap against time for each case."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from solvers.records import Results, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw"]

_COLUMNS = 4
_LEAST_GAP = 1e-5
_LEAST_S = 1e-3
"""Smaller gaps, shorter times are drawn here: the axes are logarithmic."""
_MARKERS = "osv^Dd<>pPX*h"


def draw(results: Results, stem: Path) -> list[Path]:
    """Write ``stem_cost.png`` and ``stem_gap.png``; those of them for which there is anything to draw."""
    files = []
    for name, figure in (("cost", _costs(results)), ("gap", _gaps(results))):
        if figure is not None:
            file = stem.with_name(f"{stem.name}_{name}.png")
            figure.savefig(file, dpi=90)
            files.append(file)
    return files


def _costs(results: Results) -> Figure | None:
    """Least extra cost over seeds at each share."""
    found = [row for row in results.rows if row.cost is not None]
    graphs = [graph for graph in results.graphs if any(row.graph == graph for row in found)]
    figure, panels = _panels(graphs, "extra cost, %")
    for panel, graph in zip(panels, graphs, strict=False):
        for solver, style in _styles(results).items():
            mine: dict[float, float] = {}
            for row in found:
                cost = results.relative(row, row.cost) or 1.0
                if (row.graph, row.solver) == (graph, solver):
                    mine[row.share] = min(100 * (cost - 1), mine.get(row.share, float("inf")))
            if mine:
                shares = sorted(mine)
                panel.plot([100 * s for s in shares], [mine[s] for s in shares], label=solver, **style)
        panel.set_yscale("symlog", linthresh=1.0)
        panel.set_ylim(bottom=0.0)
        panel.set_xlabel("budget, % of the keep-everything peak")
    return _with_legend(figure, panels)


def _gaps(results: Results) -> Figure | None:
    """The proved gap as time goes by, of the first seed."""
    found = [row for row in results.rows if row.gap is not None and _proves(row)]
    cases = list(dict.fromkeys(f"{row.graph} at {row.share:.0%}" for row in found))
    figure, panels = _panels(cases, "gap, %")
    drawn = set()
    for row in found:
        case = f"{row.graph} at {row.share:.0%}"
        if (case, row.solver) in drawn:
            continue
        drawn.add((case, row.solver))
        corners = [m for m in row.moments if m.cost is not None and m.cost > 0]
        gaps = [100 * max((m.cost - m.bound) / m.cost, _LEAST_GAP) for m in corners if m.cost]
        times = [max(m.seconds, _LEAST_S) for m in corners]
        style = _styles(results)[row.solver] | {"marker": ".", "drawstyle": "steps-post"}
        panels[cases.index(case)].plot([*times, row.seconds], [*gaps, gaps[-1]], label=row.solver, **style)
    longest = max((row.seconds or 0.0 for row in found), default=1.0)
    for panel in panels:
        panel.set_xscale("log")
        panel.set_xlim(_LEAST_S, 1.5 * max(longest, 2 * _LEAST_S))
        panel.set_yscale("log")
        panel.set_xlabel("seconds")
    return _with_legend(figure, panels)


def _proves(row: Row) -> bool:
    """Whether more is proved than what every solver knows, or the bound was reached."""
    return row.outcome == "optimal" or any(m.bound > row.moments[0].bound for m in row.moments)


def _panels(titles: list[str], label: str) -> tuple[Figure | None, list[Any]]:
    if not titles:
        return None, []
    from matplotlib.figure import Figure

    rows = -(-len(titles) // _COLUMNS)
    figure = Figure(figsize=(4.2 * _COLUMNS, 3.1 * rows + 0.6), layout="constrained")
    panels = list(figure.subplots(rows, _COLUMNS, squeeze=False).flat)
    for panel in panels[len(titles) :]:
        panel.remove()
    for panel, title in zip(panels, titles, strict=False):
        panel.set_title(title)
        panel.set_ylabel(label)
        panel.grid(alpha=0.25)
    return figure, panels[: len(titles)]


def _styles(results: Results) -> dict[str, dict[str, Any]]:
    """The same colour and marker for a solver in every panel."""
    solvers = list(dict.fromkeys(row.solver for row in results.rows))
    return {
        solver: {
            "color": f"C{i % 10}",
            "marker": _MARKERS[i % len(_MARKERS)],
            "linewidth": 2.0 if solver == "auto" else 1.0,
            "markersize": 4,
            "zorder": 3 if solver == "auto" else 2,
        }
        for i, solver in enumerate(solvers)
    }


def _with_legend(figure: Figure | None, panels: list[Any]) -> Figure | None:
    """One legend for all panels."""
    if figure is None:
        return None
    handles: dict[str, Any] = {}
    for panel in panels:
        for handle, name in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    figure.legend(
        list(handles.values()), list(handles), loc="outside upper center", ncols=8, fontsize="small"
    )
    return figure

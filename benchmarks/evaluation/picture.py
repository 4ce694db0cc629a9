"""The picture in the README: extra time at each budget, Checkmate beside other rules.

It shows a few curves from the results file of the experiment *overhead* (:mod:`evaluation.overhead`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import zoo
from evaluation.overhead import panels, proved_at
from evaluation.results import Results, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw", "save"]

_NETWORKS = (("unet", "layer", 32), ("resnet50", "op", 256), ("gpt2", "op", 8))
"""Name, level and batch of each panel."""
_CURVES: Mapping[str, tuple[str, str, str]] = {
    "chen-sqrt-n": ("checkpoints, √n rule", "#9a7b4f", "s"),
    "chen-greedy": ("checkpoints, greedy rule", "#c8553d", "^"),
    "evict-dtr": ("DTR's eviction rule", "#7a8b99", "D"),
    "auto": ("Checkmate", "#1f5f8b", "o"),
}
"""By solver: label, colour, marker."""
_HIGHEST, _LOWEST, _BELOW = 50.0, -1.5, 3.0
"""Ends of the vertical axis, percent; width of the area below the floor, percent of the peak."""


def draw(results: Results) -> Figure:
    """One panel for each network: extra time in percent over the budget in percent of the peak.

    Args:
        results: rows of the experiment *overhead*.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 3.7), layout="constrained")
    found = {tuple(rows[0][name] for name in ("network", "level", "batch")): rows for rows in panels(results)}
    places = figure.subplots(1, len(_NETWORKS), sharey=True)
    for axes, key in zip(places, _NETWORKS, strict=True):
        rows = found[key]
        for solver, (label, colour, marker) in _CURVES.items():
            points = sorted(
                (_percent(row["budget"], row), 100 * (row["cost"] - 1))
                for row in rows
                if row["solver"] == solver and row["cost"] is not None
            )
            width = 2.6 if solver == "auto" else 1.3
            axes.plot(
                *zip(*points, strict=True), color=colour, marker=marker, markersize=5, lw=width, label=label
            )
        budgets, heights = _proved(rows)
        axes.fill_between(budgets, heights, _LOWEST, step="pre", color="0.87", label="proved impossible")
        axes.set(title=f"{zoo.NETWORKS[key[0]].title}, batch {key[2]}", ylim=(_LOWEST, _HIGHEST))
        axes.set_xlabel("budget, % of peak without recomputation", fontsize="small")
        axes.invert_xaxis()
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    places[0].set_ylabel("extra compute time, %")
    handles, labels = places[0].get_legend_handles_labels()
    order = [3, 0, 1, 2, 4]  # Checkmate first, though drawn last
    figure.legend(
        [handles[k] for k in order], [labels[k] for k in order], loc="outside lower center", ncols=5
    )
    return figure


def save(results: Results, file: Path) -> None:
    """Write the picture as SVG; the same results give the same bytes.

    Args:
        results: rows of the experiment *overhead*.
        file: that is written.
    """
    import matplotlib as mpl

    with mpl.rc_context({"svg.hashsalt": "checkmate"}):
        draw(results).savefig(file, metadata={"Date": None})


def _proved(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    """Budgets and, for each, the extra time in percent below which no schedule exists."""
    budgets = sorted({row["budget"] for row in rows})
    heights = [min(100 * (proved_at(rows, budget) - 1), _HIGHEST) for budget in budgets[1:]]
    shares = [_percent(budget, rows[0]) for budget in budgets]
    return [shares[0] - _BELOW, *shares], [_HIGHEST, _HIGHEST, *heights]  # the least budget is the floor


def _percent(budget: int, row: Row) -> float:
    return 100 * budget / float(row["keep_all"])

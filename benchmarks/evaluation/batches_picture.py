"""The picture of larger batches: each method's largest batch relative to stock's, in both frameworks.

It shows ratios from the results files of the experiments in :mod:`evaluation.executed_batches`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from evaluation.executed_batches import METHODS, paper_ratio, ratios_of
from evaluation.largest_batch import PUBLISHED, title_of
from evaluation.results import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw", "save"]

_BARS: Mapping[str, tuple[str, str]] = {
    "stock": ("framework as it is", "#c3cad0"),
    "remat": ("recomputed per block", "#9a7b4f"),
    "ours": ("Checkmate", "#1f5f8b"),
}
"""By method: label and colour."""
_PAPER, _PAPER_LABEL = "#c8553d", "the paper's figure, on graphs"
_WIDTH = 0.29


def draw(tensorflow: Results, torch: Results) -> Figure:
    """A panel for each framework, a group of bars for each network, the paper's ratio a line across ours.

    Args:
        tensorflow: rows of the experiment in TensorFlow.
        torch: rows of the experiment in PyTorch.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.5, 3.6), layout="constrained")
    for axes, results, title in zip(
        figure.subplots(1, 2, sharey=True), (tensorflow, torch), ("TensorFlow", "PyTorch"), strict=True
    ):
        _panel(axes, results)
        axes.set_title(title)
    axes = figure.axes[0]
    axes.set_ylabel("largest batch within the same\nmemory, relative to stock")
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda k: labels[k] == _PAPER_LABEL)
    chosen = [handles[k] for k in order], [labels[k] for k in order]
    figure.legend(*chosen, loc="outside lower center", ncols=4)
    return figure


def _panel(axes: Axes, results: Results) -> None:
    from matplotlib.patheffects import withStroke

    networks = [name for name in PUBLISHED if ratios_of(results, name)["stock"]]
    for k, method in enumerate(METHODS):
        label, colour = _BARS[method]
        places = [place + (k - 1) * _WIDTH for place in range(len(networks))]
        heights = [ratios_of(results, network)[method] for network in networks]
        bars = axes.bar(places, heights, width=0.92 * _WIDTH, color=colour, label=label, zorder=2)
        sizes = [_batch(results, network, method) for network in networks]
        halo = [withStroke(linewidth=2, foreground="white")]
        axes.bar_label(bars, sizes, fontsize=6.5, padding=2, color="0.25", path_effects=halo, zorder=4)
    for place, network in enumerate(networks):
        middle, height = place + _WIDTH, paper_ratio(network, "ours")
        ends = middle - 0.62 * _WIDTH, middle + 0.62 * _WIDTH
        label = None if place else _PAPER_LABEL
        axes.hlines(height, *ends, color=_PAPER, lw=2.2, label=label, zorder=3)
    axes.axhline(1, color="0.6", lw=0.8, zorder=1)
    axes.set_xticks(range(len(networks)), [title_of(network) for network in networks], fontsize="small")
    axes.yaxis.set_major_formatter("{x:.0f}×")
    axes.grid(axis="y", alpha=0.25, zorder=0)
    axes.tick_params(axis="x", length=0)
    axes.spines[["top", "right"]].set_visible(False)


def _batch(results: Results, network: str, method: str) -> str:
    return next((str(row["batch"]) for row in results.where(network=network, method=method)), "")


def save(tensorflow: Results, torch: Results, file: Path) -> None:
    """Write the picture as SVG; the same results give the same bytes.

    Args:
        tensorflow: rows of the experiment in TensorFlow.
        torch: rows of the experiment in PyTorch.
        file: that is written.
    """
    import matplotlib as mpl

    with mpl.rc_context({"svg.hashsalt": "checkmate"}):
        draw(tensorflow, torch).savefig(file, metadata={"Date": None})

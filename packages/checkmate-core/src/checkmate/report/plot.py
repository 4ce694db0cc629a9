"""Pictures by matplotlib: memory over time, the matrices R and S, overhead against the budget.

The pictures of schedules follow figures 5 and 7 of Jain et al., "Checkmate: Breaking the Memory Wall with
Optimal Tensor Rematerialization", MLSys 2020. Names are drawn as plain text, never as formulas.

matplotlib, of the extra ``checkmate-core[plot]``, is imported in this file only. Every picture has a figure
of its own and uses no global state (pyplot, backends); equal input gives an equal file.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from checkmate.errors import MissingDistributionError, install_hint
from checkmate.files.disk import replace_file
from checkmate.model.graph import DFGraph
from checkmate.model.plan import Plan
from checkmate.plugins.loader import ANYTHING, one_line
from checkmate.problem.pieces import WHOLE, Pieces
from checkmate.problem.reading import Phase, Reading
from checkmate.simulate import Timeline
from checkmate.text.printable import byte_unit, clipped
from checkmate.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from checkmate.solving.sweep import Frontier

__all__ = [
    "Line",
    "MemoryPicture",
    "blank_figure",
    "gap_corners",
    "plot_frontier",
    "plot_memory",
    "plot_plan",
    "plot_timeline",
    "save_figure",
    "solver_lines",
]

_MIB = 2**20
_UNDATED: dict[str, dict[str, Any]] = {
    "png": {},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None, "ModDate": None},
}
_PHASES = {
    Phase.FORWARD: ("forward", "#3b76af"),
    Phase.BACKWARD: ("backward", "#519e3e"),
    Phase.RECOMPUTE: ("recomputed", "#d9762b"),
}
_BASE = "#b8b8b8"
_MARKERS = "osD^vP*X"
_MOST_CELLS = 260  # most cells along a side of a picture of a matrix; a single cell stays visible


def blank_figure(width: float, height: float) -> Figure:
    """An empty figure, its size in inches.

    Raises:
        MissingDistributionError: if matplotlib is not installed, or fails to load.
    """
    try:
        from matplotlib.figure import Figure
    except ANYTHING as error:
        absent = isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("matplotlib")
        reason = install_hint("checkmate-core[plot]") if absent else f"it fails to load: {one_line(error)}"
        raise MissingDistributionError(f"pictures need matplotlib: {reason}", name="matplotlib") from error
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Figure, path: str | os.PathLike[str], kind: str = "") -> None:
    """Write a figure without its date, as ``kind``; default the suffix of ``path``, else PNG."""
    from matplotlib import rc_context

    suffix = Path(path).suffix.lower().removeprefix(".")
    kind = kind or (suffix if suffix in _UNDATED else "png")
    with warnings.catch_warnings(), rc_context({"svg.hashsalt": "checkmate"}):
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the font lacks a script
        figure.savefig(drawn := BytesIO(), format=kind, dpi=120, metadata=_UNDATED[kind])
    replace_file(path, drawn.getvalue())


def plot_memory(
    curves: Mapping[str, tuple[Sequence[float], Sequence[int]]],
    budget: int | None,
    path: str | os.PathLike[str],
    *,
    title: str = "",
    time_label: str = "time [s]",
) -> None:
    """Draw memory-over-time curves with their peaks and the budget line.

    ``curves`` maps a name to (times, bytes), both of the same length; bytes hold until the next time. The
    suffix of ``path`` is the format, as in :func:`save_figure`.

    Raises:
        MissingDistributionError: if matplotlib is not installed.
    """
    figure = blank_figure(9, 4.5)
    axes = figure.add_subplot()
    for name, (times, sizes) in curves.items():
        seconds, mib = np.asarray(times, dtype=float), np.asarray(sizes, dtype=float) / _MIB
        top = int(mib.argmax())
        (line,) = axes.step(
            seconds, mib, where="post", linewidth=1.3, label=f"{name}: peak {mib[top]:.1f} MiB"
        )
        axes.plot(seconds[top], mib[top], marker="v", markersize=8, color=line.get_color(), linestyle="none")
    if budget is not None:
        label = f"budget: {budget / _MIB:.1f} MiB"
        axes.axhline(budget / _MIB, color="black", linestyle="--", linewidth=1, label=label)
    axes.set_xlabel(time_label)
    axes.set_ylabel("memory held [MiB]")
    axes.set_ylim(bottom=0)
    axes.margins(x=0.01)
    axes.grid(alpha=0.25)
    axes.set_title(title)
    axes.legend(loc="best", framealpha=0.9)
    save_figure(figure, path)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPicture:
    """The exporter of :func:`plot_timeline`.

    Attributes:
        kind: ``"png"``, ``"svg"`` or ``"pdf"``.
    """

    kind: str

    def write(self, timeline: Timeline, file: Path, *, budget: int | None = None) -> None:
        """Draw ``timeline`` and, if given, the budget."""
        plot_timeline(timeline, file, budget=budget, kind=self.kind)


def plot_timeline(
    timeline: Timeline,
    path: str | os.PathLike[str],
    *,
    budget: int | None = None,
    title: str = "",
    kind: str = "",
) -> None:
    """Draw the memory held while each op runs, against the budget.

    The horizontal axis is cumulative cost, or the number of runs if all costs are 0. First runs of forward
    ops, first runs of backward ops and recomputations have a colour each. Graph inputs and fixed bytes, which
    no schedule can free, are a grey band. The peak is marked with the op that runs then. The default title is
    the graph's name. ``kind`` is ``"png"``, ``"svg"`` or ``"pdf"``; default the suffix of ``path``, else PNG.

    Raises:
        MissingDistributionError: if matplotlib is not installed.
    """
    reading, graph = Reading(timeline), timeline.graph
    figure = blank_figure(9, 4.5)
    axes = figure.add_subplot()
    timed = bool(reading.starts[-1] > 0)
    edges = reading.starts if timed else np.arange(len(reading.ops) + 1.0)
    scale, unit = byte_unit(max(timeline.peak, budget or 0))
    memory = reading.memory / scale
    for phase, (label, colour) in _PHASES.items():
        mine = reading.phases == phase
        if mine.any():
            x, top = _outline(edges, np.where(mine, memory, np.nan))
            axes.fill_between(x, top, graph.base_size / scale, color=colour, alpha=0.85, lw=0, label=label)
    axes.plot(*_outline(edges, memory), color="#222222", lw=0.6)
    if graph.base_size:
        axes.fill_between(
            edges[[0, -1]], graph.base_size / scale, color=_BASE, lw=0, label="inputs and fixed, never freed"
        )
    if len(memory):
        _mark_peak(axes, reading, edges, scale)
    if budget is not None:
        label = f"budget: {format_bytes(budget)}"
        axes.axhline(budget / scale, color="black", linestyle="--", lw=1.1, label=label)
    axes.set_xlabel(_cost_label(graph.cost_unit) if timed else "ops run", parse_math=False)
    axes.set_ylabel(f"memory held [{unit}]")
    axes.set_title(clipped(title or graph.name, 100), parse_math=False)
    axes.set_ylim(0, max(timeline.peak, budget or 0, 1) / scale * 1.12)
    axes.margins(x=0)
    if axes.get_legend_handles_labels()[1]:
        _plain(figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=9))
    save_figure(figure, path, kind)


def _mark_peak(axes: Any, reading: Reading, edges: npt.NDArray[np.float64], scale: float) -> None:
    run = reading.peak_run
    op = reading.timeline.graph.ops[int(reading.ops[run])]
    x, y = (edges[run] + edges[run + 1]) / 2, reading.timeline.peak / scale
    axes.plot(x, y, marker="v", markersize=7, color="#222222", linestyle="none")
    axes.annotate(
        f"{format_bytes(reading.timeline.peak)} in {clipped(op.name, 32)}",
        (x, y),
        xytext=(0, 7),
        textcoords="offset points",
        ha="left" if x < edges[-1] / 2 else "right",
        fontsize=8.5,
        parse_math=False,
        bbox={"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none", "alpha": 0.8},
    )


def plot_plan(
    plan: Plan | Timeline, path: str | os.PathLike[str], *, title: str = "", pieces: Pieces = WHOLE
) -> None:
    """Draw the ops of each stage (R) and the tensors retained into it (S), stages from top to bottom.

    In R the first run of an op is dark and a recomputation orange. Large matrices are drawn in blocks: in R a
    block is filled if any of its entries is, and orange if one is a recomputation; in S its shade is its
    share of entries. The schedule of a timeline is divided into stages. The pieces of an op share a column of
    R; in S each of their tensors has its own. Files are as of :func:`save_figure`.

    Raises:
        MissingDistributionError: if matplotlib is not installed.
    """
    plan = plan if isinstance(plan, Plan) else Plan.of(plan.graph, plan.schedule)
    figure = blank_figure(10, 5.2)
    left, right = figure.subplots(1, 2)
    first = np.zeros_like(plan.compute)
    ran = np.flatnonzero(plan.compute.any(axis=0))
    if len(ran):
        first[plan.compute.argmax(axis=0)[ran], ran] = True
    again = plan.compute & ~first
    _draw_matrix(left, _joined(first, plan.graph, pieces), "first run", "#24425f", whole_blocks=True)
    _draw_matrix(left, _joined(again, plan.graph, pieces), "recomputed", "#d9762b", whole_blocks=True)
    _draw_matrix(right, plan.retain, "retained", "#24425f")
    left.set(title="R: computed in the stage", xlabel="op", ylabel="stage")
    right.set(title="S: retained into the stage", xlabel="tensor")
    _plain(left.legend(loc="upper right", framealpha=0.9, fontsize=9))
    figure.suptitle(clipped(title or plan.graph.name, 100), parse_math=False)
    save_figure(figure, path)


def _joined(runs: npt.NDArray[np.bool_], graph: DFGraph, pieces: Pieces) -> npt.NDArray[np.bool_]:
    """The runs of ops, shape ``[n_stages, n_ops]``, with one column for the pieces of an op."""
    if not pieces:
        return runs
    return np.stack([runs[:, [*ops]].any(axis=1) for ops in pieces.whole_ops(graph)], axis=1)


def _draw_matrix(
    axes: Any, matrix: npt.NDArray[np.bool_], label: str, colour: str, *, whole_blocks: bool = False
) -> None:
    """Draw a matrix, transparent where it is false; a large one in blocks of cells."""
    full = matrix.astype(np.float64)
    for axis, n in enumerate(matrix.shape):
        if n:
            edges = np.arange(0, n, max(1, -(-n // _MOST_CELLS)))
            counts = np.diff(edges, append=n)
            full = np.add.reduceat(full, edges, axis=axis) / np.expand_dims(counts, 1 - axis)
    image = np.empty((*full.shape, 4))
    image[..., :3] = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    image[..., 3] = full > 0 if whole_blocks else full
    axes.plot([], [], marker="s", linestyle="none", color=colour, label=label)
    if image.size:
        extent = (-0.5, matrix.shape[1] - 0.5, matrix.shape[0] - 0.5, -0.5)
        axes.imshow(image, interpolation="nearest", aspect="auto", extent=extent)


def plot_frontier(frontier: Frontier, path: str | os.PathLike[str], *, title: str = "") -> None:
    """Draw the least overhead that each solver found against the budget, and the gap to the proved bound.

    It is proved that no schedule lies below the shaded area. Where the line of a solver ends, it has no
    schedule for smaller budgets. Formats are as in :func:`save_figure`.

    Raises:
        MissingDistributionError: if matplotlib is not installed.
    """
    figure = blank_figure(7.5, 4.8)
    axes = figure.add_subplot()
    lines, corners = solver_lines(frontier), gap_corners(frontier)
    scale, unit = byte_unit(max((budget for budget, _, _ in corners), default=0))
    for k, (solver, line) in enumerate(lines.items()):
        axes.step(
            np.array(line.budgets) / scale,
            np.array(line.overheads) * 100,
            where="post",
            linewidth=1.3,
            marker=_MARKERS[k % len(_MARKERS)],
            markersize=5,
            label=clipped(solver, 40),
        )
    if corners:
        budgets, lows, highs = np.array(corners).T
        label = "gap to the proved bound"
        axes.fill_between(
            budgets / scale, lows * 100, highs * 100, color="#888", alpha=0.25, lw=0, label=label
        )
    axes.set_title(clipped(title or frontier.graph.name, 100), parse_math=False)
    axes.set(xlabel=f"budget [{unit}]", ylabel="overhead [% of computing every op once]")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)
    if lines:
        _plain(axes.legend(loc="best", framealpha=0.9, fontsize=9))
    save_figure(figure, path)


class Line(NamedTuple):
    """Points of a picture, budgets ascending: bytes, and overhead as a fraction."""

    budgets: list[int]
    overheads: list[float]


def solver_lines(frontier: Frontier) -> dict[str, Line]:
    """For each solver with a schedule: its least overhead at each budget of the sweep."""
    lines: dict[str, Line] = {}
    for solver in sorted({answer.solver for answer in frontier.answers}):
        mine = [answer for answer in frontier.answers if answer.solver == solver]
        found = [(a.peak, a.overhead) for a in mine if a.peak is not None]
        line = Line([], [])
        for budget in sorted({a.problem.budget for a in mine}):
            within = [overhead for peak, overhead in found if peak <= budget]
            if within:
                line.budgets.append(budget)
                line.overheads.append(min(within))
        if line.budgets:
            lines[solver] = line
    return lines


def gap_corners(frontier: Frontier) -> list[tuple[int, float, float]]:
    """Corners (budget, proved bound, least overhead) of the gap between the two, budgets ascending.

    Between two budgets, the smaller one has the best known schedule, and the larger one the best bound.
    """
    lines, ideal = solver_lines(frontier).values(), frontier.graph.ideal_cost
    bounds = [(a.problem.budget, a.bound) for a in frontier.answers if math.isfinite(a.bound)]
    best = sorted({(b, o) for line in lines for b, o in zip(*line, strict=True)}, reverse=True)
    overhead = dict(best)  # of equal budgets the least overhead comes last
    corners: list[tuple[int, float, float]] = []
    for budget in sorted(overhead):
        proved = max((bound for of, bound in bounds if of >= budget), default=0.0)
        low = proved / ideal - 1.0 if ideal > 0 else 0.0
        if corners:
            corners.append((budget, low, corners[-1][2]))
            corners[-2] = (corners[-2][0], low, corners[-2][2])
        corners.append((budget, low, overhead[budget]))
    return corners


def _plain(legend: Any) -> None:
    """Draw labels as plain text: a dollar sign starts no formula."""
    for text in legend.get_texts():
        text.set_parse_math(False)


def _outline(
    edges: npt.NDArray[np.float64], heights: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The corners of a step curve: height k between edge k and edge k + 1."""
    return np.repeat(edges, 2)[1:-1], np.repeat(heights, 2)


def _cost_label(unit: str) -> str:
    return (
        f"time [{unit}]"
        if unit == "s"
        else f"cumulative cost [{clipped(unit)}]"
        if unit
        else "cumulative cost"
    )

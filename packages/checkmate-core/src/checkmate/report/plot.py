"""Memory over time as a picture: bytes held on the vertical axis, time on the horizontal one.

Needs matplotlib, of the extra ``checkmate-core[plot]``, imported in this file only. Every picture has a
figure of its own and uses no global state (pyplot, backends); equal input gives an equal file.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from checkmate.errors import MissingDistributionError, install_hint
from checkmate.files.disk import replace_file
from checkmate.plugins.loader import ANYTHING, one_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["blank_figure", "plot_memory", "save_figure"]

_MIB = 2**20
_UNDATED: dict[str, dict[str, Any]] = {
    "png": {},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None, "ModDate": None},
}


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

    Args:
        curves: name → (times, bytes), both of the same length; bytes hold until the next time.
        budget: bytes; None draws no line.
        path: of the picture; its suffix is the format, as in :func:`save_figure`.
        title: above the picture.
        time_label: of the horizontal axis.

    Raises:
        MissingDistributionError: if matplotlib is not installed.
        ValueError: if a curve is empty or its times and bytes differ in length.
    """
    figure = blank_figure(9, 4.5)
    axes = figure.add_subplot()
    for name, (times, sizes) in curves.items():
        seconds, mib = np.asarray(times, dtype=float), np.asarray(sizes, dtype=float) / _MIB
        if len(seconds) != len(mib) or not len(mib):
            raise ValueError(
                f"curve {name!r} has {len(seconds)} times and {len(mib)} sizes: must be equal, and ≥ 1"
            )
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

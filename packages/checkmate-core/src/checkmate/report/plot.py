"""Memory over time as a picture: bytes held on the vertical axis, time on the horizontal one.

Needs matplotlib: ``pip install 'checkmate-core[plot]'``. Draws on a figure of its own, so no global state
(pyplot, backends) is touched.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np

from checkmate.errors import MissingDistributionError

__all__ = ["plot_memory"]

_MIB = 2**20


def plot_memory(
    curves: Mapping[str, tuple[Sequence[float], Sequence[int]]],
    budget: int | None,
    path: str | os.PathLike[str],
    *,
    title: str = "",
    time_label: str = "time [s]",
) -> None:
    """Draw memory-over-time curves with their peaks and the budget line, as a PNG.

    Args:
        curves: name → (times, bytes), both of the same length; bytes hold until the next time.
        budget: bytes; None draws no line.
        path: of the PNG.
        title: above the picture.
        time_label: of the horizontal axis.

    Raises:
        MissingDistributionError: if matplotlib is not installed.
        ValueError: if a curve is empty or its times and bytes differ in length.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingDistributionError(
            "pictures need matplotlib: pip install 'checkmate-core[plot]'", name=error.name
        ) from error

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for name, (times, sizes) in curves.items():
        seconds, mib = np.asarray(times, dtype=float), np.asarray(sizes, dtype=float) / _MIB
        if len(seconds) != len(mib) or not len(mib):
            raise ValueError(
                f"curve {name!r} has {len(seconds)} times and {len(mib)} sizes: as many, and ≥ 1"
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
    figure.savefig(os.fspath(path), format="png", dpi=120)

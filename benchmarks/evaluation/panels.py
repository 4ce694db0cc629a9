"""Pictures of many panels: one for each network, in rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["panels"]


def panels(n: int, across: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """A figure, and its first n places; the others of the last row stay empty.

    Args:
        n: number of panels, at least 1.
        across: the most panels in a row.
        size: width and height of a panel, in inches.
    """
    from matplotlib.figure import Figure

    across = min(across, n)
    down = -(-n // across)
    figure = Figure(figsize=(size[0] * across, size[1] * down), layout="constrained")
    places = list(figure.subplots(down, across, squeeze=False).flat)
    for unused in places[n:]:
        unused.set_axis_off()
    return figure, places[:n]

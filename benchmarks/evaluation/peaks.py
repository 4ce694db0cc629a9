"""Predicted against measured peak, for every real step that the evaluation runs by a plan of Checkmate.

``expected`` is the plan's prediction of the measured peak, ``bound`` (in TensorFlow) the simulator's upper
bound. The bound is higher than the measurement: an op may reuse the buffer of an input that it reads last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evaluation.executions import EXPERIMENTS as EXECUTIONS
from evaluation.results import Results, Row
from pages import table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENTS"]


def markdown(results: Results) -> str:
    """A line for each network and method: the worst of its budgets."""
    lines = []
    for network, method in dict.fromkeys((row["network"], row["method"]) for row in _planned(results)):
        rows = [r for r in _planned(results) if (r["network"], r["method"]) == (network, method)]
        lines.append(
            (
                f"{network}, {method}",
                len(rows),
                f"{max(row['peak'] / row['budget'] for row in rows):.1%}",
                _range([row["expected"] / row["peak"] - 1 for row in rows]),
                _range([row["bound"] / row["peak"] - 1 for row in rows if row["bound"]]),
            )
        )
    head = ("network", "budgets", "measured / budget, at most", "expected / measured", "simulated / measured")
    return table(head, lines)


def draw(results: Results) -> Figure | None:
    """Measured over expected peak, both as shares of the plain step's."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 5), layout="constrained")
    axes = figure.subplots()
    for network in dict.fromkeys(row["network"] for row in _planned(results)):
        rows = [row for row in _planned(results) if row["network"] == network]
        x, y = ([100 * row[name] / row["plain_peak"] for row in rows] for name in ("expected", "peak"))
        axes.plot(x, y, "o", ms=4, label=network)
    axes.axline((50, 50), slope=1, lw=0.8, color="gray")
    axes.set_xlabel("expected peak, % of the plain step's")
    axes.set_ylabel("measured peak, % of the plain step's")
    axes.grid(alpha=0.25)
    axes.legend(fontsize="small")
    return figure


def _planned(results: Results) -> list[Row]:
    return [row for row in results.where() if row["expected"] and row["peak"]]


def _range(values: list[float]) -> str:
    if not values:
        return "–"
    low, high = (f"{value:+.1%}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


EXPERIMENTS = tuple(
    one.seen_as(
        name=one.name.replace("steps", "peaks"),
        title=f"Predicted against measured peak: {one.title}",
        about=f"predicted against measured peak, from the rows of {one.name}",
        markdown=markdown,
        draw=draw,
    )
    for one in EXECUTIONS
)

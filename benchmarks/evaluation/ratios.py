"""Approximation ratios: cost / optimum, as a geometric mean over budgets, for rules and for rounding.

Table 2 of Jain et al., "Checkmate", MLSys 2020, from the rows of :mod:`evaluation.overhead`. The optimum is
the least cost that any solver found within a budget, if a bound meets it; else its distance to the bound is
reported. Budgets that need no recomputation are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from evaluation import overhead
from evaluation.overhead import PAPER_LP, best_at, panels, proved_at, title_of
from evaluation.results import Results, Row
from pages import table

__all__ = ["EXPERIMENT", "PROVED"]

PROVED = 1e-3
"""Relative gap between cost and bound up to which a cost counts as the optimum."""

_SHOWN = (
    *("chen-sqrt-n-ap", "chen-greedy-ap", "chen-sqrt-n", "chen-greedy", "revolve", PAPER_LP, "lp-rounding"),
    *("evict-belady", "evict-dtr", "retention-intervals", "checkmate-milp", "auto"),
)

_PUBLISHED = {
    "mobilenet": (1.14, 1.07, 7.07, 1.06),
    "vgg16": (1.28, 1.06, 1.44, 1.01),
    "vgg19": (1.54, 1.39, 1.75, 1.00),
    "unet": (1.27, 1.23, None, 1.03),
    "resnet50": (1.20, 1.25, None, 1.05),
}
"""Table 2: AP √n, AP greedy, Griewank log n, two-phase LP rounding; measured on the paper's own graphs."""
_SAME_METHODS = ("chen-sqrt-n-ap", "chen-greedy-ap", "revolve", PAPER_LP)


def markdown(results: Results) -> str:
    """A line for each network; then the paper's ratios beside the same methods of ours."""
    shown = [solver for solver in _SHOWN if solver in results.distinct("solver")]
    every = panels(results)
    ours = [[title_of(rows[0]), _proved(rows), *(_ratio(rows, solver) for solver in shown)] for rows in every]
    return f"{table(['network', 'optimum known', *shown], ours)}\n\n{_beside_published(every)}"


def _beside_published(every: Sequence[Sequence[Row]]) -> str:
    lines = []
    for rows in every:
        known = _PUBLISHED.get(rows[0]["network"])
        if known is None or rows[0]["level"] != "layer":
            continue
        cells = (
            f"{'–' if published is None else f'{published:.2f}'} / {_ratio(rows, solver)}"
            for published, solver in zip(known, _SAME_METHODS, strict=True)
        )
        lines.append([title_of(rows[0]), *cells])
    head = ["network", "AP √n", "AP greedy", "Griewank log n / revolve", "two-phase LP rounding"]
    return f"The same ratio, published in table 2 / here:\n\n{table(head, lines)}"


def _budgets(rows: Sequence[Row]) -> list[int]:
    """Budgets with a schedule, but only with recomputation."""
    asked = sorted({row["budget"] for row in rows if row["budget"] < row["keep_all"]})
    return [budget for budget in asked if best_at(rows, budget) < math.inf]


def _ratio(rows: Sequence[Row], solver: str) -> str:
    """The geometric mean of cost / least cost found, and its number of budgets of all."""
    budgets = _budgets(rows)
    costs = {row["budget"]: row["cost"] for row in rows if row["solver"] == solver and row["cost"]}
    ratios = [costs[budget] / best_at(rows, budget) for budget in budgets if budget in costs]
    if not ratios:
        return "–"
    mean = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
    return f"{mean:.3f} ({len(ratios)}/{len(budgets)})"


def _proved(rows: Sequence[Row]) -> str:
    """The number of budgets with a known optimum, and the largest gap elsewhere."""
    gaps = [best_at(rows, budget) / proved_at(rows, budget) - 1 for budget in _budgets(rows)]
    known = sum(gap <= PROVED for gap in gaps)
    worst = max(gaps, default=0.0)
    return f"{known} of {len(gaps)}" + (f"; else within {worst:.1%}" if known < len(gaps) else "")


EXPERIMENT = overhead.EXPERIMENT.seen_as(
    name="ratios",
    title="Approximation ratios",
    about="cost over the optimum, of rules and of rounding (paper, table 2)",
    markdown=markdown,
)

"""A sweep as lines over the budget: the least overhead of each solver, and the proved bound below it.

A schedule for a budget also meets every larger one, and a bound for a budget also holds for every smaller
one. So overhead and bound fall along each line.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from checkmate.solving.sweep import Frontier

__all__ = ["Line", "gap_corners", "solver_lines"]


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

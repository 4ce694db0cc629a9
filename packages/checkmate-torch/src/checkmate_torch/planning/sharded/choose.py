"""Choose a schedule for each call of a part, so that no moment of a step needs more than the budget.

    min Σ cost(i, xᵢ)  subject to  Mₖ(x) ≤ budget at each moment k
    Mₖ(x) = Mₖ(y) + Σᵢ rᵢₖ(xᵢ) − rᵢₖ(yᵢ)

y was rehearsed, and rᵢₖ(j) is what call i holds at moment k by its schedule j.


A multiple-choice knapsack with a row for each moment. It is solved by greedy steps, each of which takes the
most bytes off the moments that exceed the budget, for its cost; then steps that were not needed are undone
(Toyoda 1975, for several rows).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["Moments", "chosen", "least"]

Moments = npt.NDArray[np.float64]
"""Bytes at each moment of a step."""


def chosen(
    costs: Sequence[Sequence[float]], held: Sequence[npt.NDArray[np.float64]], rest: Moments, budget: float
) -> list[int]:
    """The number of a schedule for each call; over the budget where the greedy steps can't reach it.

    Args:
        costs: of each call's schedules; the first schedule is the cheapest.
        held: for each call, the bytes that it holds: a row for each schedule, a column for each moment.
        rest: bytes of the rest of the step.
        budget: bytes.
    """
    picks = [0] * len(costs)
    memory = rest + sum(rows[0] for rows in held)
    while (excess := np.maximum(memory - budget, 0).sum()) > 0:
        best: tuple[float, int, int] | None = None
        for i, rows in enumerate(held):
            less = excess - np.maximum(memory - rows[picks[i]] + rows - budget, 0).sum(axis=1)
            more = np.maximum(np.asarray(costs[i]) - costs[i][picks[i]], 0)
            worth = np.where(less > 0, less / np.maximum(more, 1e-12), 0)
            j = int(worth.argmax())
            if less[j] > 0 and (best is None or worth[j] > best[0]):
                best = float(worth[j]), i, j
        if best is None:
            return picks
        _, i, j = best
        memory = memory - held[i][picks[i]] + held[i][j]
        picks[i] = j
    return _relaxed(costs, held, memory, budget, picks)


def _relaxed(
    costs: Sequence[Sequence[float]],
    held: Sequence[npt.NDArray[np.float64]],
    memory: Moments,
    budget: float,
    picks: list[int],
) -> list[int]:
    """Take cheaper schedules where there is room, the largest saving first."""
    while True:
        best: tuple[float, int, int] | None = None
        for i, rows in enumerate(held):
            for j, cost in enumerate(costs[i]):
                saving = costs[i][picks[i]] - cost
                if saving <= 0 or (best is not None and saving <= best[0]):
                    continue
                if (memory - rows[picks[i]] + rows[j]).max() <= budget:
                    best = saving, i, j
        if best is None:
            return picks
        _, i, j = best
        memory = memory - held[i][picks[i]] + held[i][j]
        picks[i] = j


def least(
    costs: Sequence[Sequence[float]], held: Sequence[npt.NDArray[np.float64]], rest: Moments
) -> list[int]:
    """The numbers of schedules under which the largest moment is the least that was found, by bisection."""
    low, best = 0.0, [0] * len(costs)
    high = _peak(held, rest, best)
    while high - low > max(1.0, high / 1000):
        middle = (low + high) / 2
        picks = chosen(costs, held, rest, middle)
        peak = _peak(held, rest, picks)
        if peak < high:
            best, high = picks, peak
        if peak > middle:
            low = middle
    return best


def _peak(held: Sequence[npt.NDArray[np.float64]], rest: Moments, picks: Sequence[int]) -> float:
    return float((rest + sum(rows[j] for rows, j in zip(held, picks, strict=True))).max())

"""The graphs that many tests share, and a solver with a given answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from checkmate import DFGraph, Problem, Solution

CHAIN = DFGraph.from_nodes(
    cost=[1] * 8,
    size=[8] * 8,
    deps=[[], [0], [1], [2], [3], [2, 4], [1, 5], [0, 6]],
    backward=[False] * 4 + [True] * 4,
    name="chain",
    cost_unit="s",
)
"""Four forward and four backward ops of 8 bytes each: peak 40 bytes without recomputation, at least 24."""

DIAMOND = DFGraph.from_nodes(cost=[1, 1, 1, 1], size=[1] * 4, deps=[[], [0], [0], [1, 2]])


@dataclass(frozen=True)
class Says:
    """A solver with a given answer."""

    answer: Callable[[Problem], object]

    def solve(self, problem: Problem) -> Solution:
        return self.answer(problem)  # type: ignore[return-value]

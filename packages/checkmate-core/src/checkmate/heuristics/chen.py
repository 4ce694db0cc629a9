"""Chen et al. 2016, "Training deep nets with sublinear memory cost": keep every k-th forward output.

*The published rule* (section 3, on a chain of n layers): cut the forward pass into segments of k = ⌈√n⌉
layers, keep only the segments' outputs, and run each segment forward once more for its backward pass:
O(√n) memory for at most one more forward pass.

*Ours*: a graph that is no chain is linearized, that is, its forward ops are taken in base order (as in Jain
et al. 2020, section 6.2); an op with several outputs keeps them all; everything else is forgotten at the
first backward op and comes back op by op, when it is read, not by whole segments; and k is swept, so that
the cheapest schedule within the budget is taken. With ``segment`` set, k is fixed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from checkmate.graph import DFGraph
from checkmate.heuristics.selection import cheapest
from checkmate.lower import lazy_sequence
from checkmate.problem import Problem
from checkmate.solution import Solution

__all__ = ["ChenSqrtN"]

_SWEEP = 32
"""How many segment lengths a sweep tries at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChenSqrtN:
    """Keep the outputs of every k-th forward op; see the module for what is published and what is ours.

    A graph without backward ops has nothing to forget: it is computed once, in base order.

    Attributes:
        segment: k; None tries ⌈√n⌉ first and then up to 32 lengths from 1 to n.

    >>> deps = [[], [0], [1], [2], [3], [2, 4], [1, 5], [0, 6]]
    >>> chain = DFGraph.from_nodes(cost=[1] * 8, size=[8] * 8, deps=deps, backward=[False] * 4 + [True] * 4)
    >>> ChenSqrtN().solve(Problem(graph=chain, budget=32)).cost
    10.0
    """

    segment: int | None = None

    def __post_init__(self) -> None:
        """Reject an empty segment."""
        if self.segment is not None and self.segment < 1:
            raise ValueError(f"segment is {self.segment}, must be ≥ 1 forward op")

    def solve(self, problem: Problem) -> Solution:
        """The cheapest that fits; when the time is up, of the segment lengths tried so far."""
        return cheapest(problem, self._sequences(problem))

    def _sequences(self, problem: Problem) -> Iterator[list[int]]:
        graph = problem.graph
        turn = next((i for i, op in enumerate(graph.ops) if op.backward), graph.n_ops)
        if turn == graph.n_ops:
            yield list(range(graph.n_ops))
            return
        started = time.monotonic()
        for segment in _segments(turn) if self.segment is None else [self.segment]:
            yield _forgetting(graph, segment, turn)
            if time.monotonic() - started > problem.time_limit:
                return


def _segments(n_forward: int) -> list[int]:
    """⌈√n⌉, then lengths between 1 and n in (about) equal ratios."""
    root = math.ceil(math.sqrt(n_forward))
    sweep = np.unique(np.geomspace(1, max(n_forward, 1), _SWEEP).round().astype(int))
    return [max(root, 1), *(k for k in sweep.tolist() if k != root)]


def _forgetting(graph: DFGraph, segment: int, turn: int) -> list[int]:
    """Keep the outputs of forward ops k−1, 2k−1, …; forget the rest at the first backward op."""
    keep = np.zeros(graph.n_tensors, dtype=np.bool_)
    for v in range(segment - 1, turn, segment):
        keep[graph.makes.row(v)] = True
    return lazy_sequence(graph, keep, turn)

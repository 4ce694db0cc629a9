"""Problems with known optima: small, and built in code, so that any solver in any language can use them.

The unit chain of n layers is the running example of the Checkmate paper: n forward ops, the loss, n backward
ops, of unit cost and size; backward op i reads the gradient before it and the output of layer i. Its optima
follow by arithmetic at the two ends: with n + 2 bytes no op is computed twice (2n + 1). With 3 bytes only the
gradient, one output and the tensor made of them fit, so each backward op computes its input from the start:
2n + 1 + n (n − 1) / 2. In between they come from :func:`checkmate.testing.optimum`, an exhaustive search that
a test repeats.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from checkmate.model.graph import DFGraph
from checkmate.problem.problem import Problem

__all__ = ["Golden", "golden_problems", "unit_chain"]

_CHAIN_8 = {2: math.inf, 3: 45, 4: 26, 5: 22, 6: 21, 7: 20, 8: 19, 9: 18, 10: 17}
_CHAIN_4 = {2: math.inf, 3: 15, 4: 11, 5: 10, 6: 9}


class Golden(NamedTuple):
    """A problem and the cost of its cheapest schedule; infinite if there is none.

    Attributes:
        name: for test ids.
        problem: the problem.
        optimum: cost of the cheapest schedule.
        origin: how the optimum was obtained.
    """

    name: str
    problem: Problem
    optimum: float
    origin: str


def unit_chain(layers: int) -> DFGraph:
    """The chain of the module: ``2 * layers + 1`` ops of one byte and cost 1.

    >>> unit_chain(8).ideal_cost
    17.0
    """
    n = layers
    forward = [[i - 1] if i else [] for i in range(n)]
    backward = [[n + j, n - 1 - j] for j in range(n)]
    return DFGraph.from_nodes(
        cost=[1] * (2 * n + 1),
        size=[1] * (2 * n + 1),
        deps=[*forward, [n - 1], *backward],
        backward=[i >= n for i in range(2 * n + 1)],
        name=f"unit chain of {n} layers",
    )


def golden_problems() -> tuple[Golden, ...]:
    """Every problem of the corpus, in free and in fixed order."""
    return tuple(_corpus())


def _corpus() -> Iterator[Golden]:
    search = "exhaustive search"
    for layers, optima in ((4, _CHAIN_4), (8, _CHAIN_8)):
        for budget, cost in optima.items():
            yield from _both(f"chain-{layers}-{budget}", unit_chain(layers), budget, cost, cost, search)
    four = DFGraph.from_nodes(cost=[5, 1, 1, 1], size=[1, 2, 1, 1], deps=[[], [], [1], [0, 2]])
    yield from _both("reorder-3", four, 3, 8, 13, "by hand: made last, the first op runs once")
    once = DFGraph.from_nodes(cost=[1] * 5, size=[2, 1, 4, 1, 1], deps=[[], [0], [1], [2], [3, 0]])
    yield from _both("bulge-7", once, 7, 5, 5, "by hand: everything fits")
    yield from _both("bulge-5", once, 5, 6, 6, "by hand: the first op runs again after the bulge")
    yield from _both("bulge-4", once, 4, math.inf, math.inf, "by hand: the bulge itself needs 5 bytes")
    yield from _both("empty", DFGraph(ops=(), tensors=()), 1, 0, 0, "by definition: the empty schedule")


def _both(name: str, graph: DFGraph, budget: int, free: float, fixed: float, origin: str) -> Iterator[Golden]:
    yield Golden(f"{name}-free", Problem(graph=graph, budget=budget), free, origin)
    problem = Problem(graph=graph, budget=budget, fixed_order=True)
    yield Golden(f"{name}-fixed", problem, fixed, origin)

"""Problems with optima that are known without a search, against the oracle."""

from __future__ import annotations

import math

import pytest

from checkmate import DFGraph, Problem
from checkmate.generators import chain
from checkmate.testing import optimum

FOUR = DFGraph.from_nodes(cost=[5, 1, 1, 1], size=[1, 2, 1, 1], deps=[[], [], [1], [0, 2]])
BULGE = DFGraph.from_nodes(cost=[1] * 5, size=[2, 1, 4, 1, 1], deps=[[], [0], [1], [2], [3, 0]])


@pytest.mark.parametrize(
    ("graph", "budget", "free", "fixed"),
    [
        pytest.param(FOUR, 3, 8, 13, id="made last, the first op runs once"),
        pytest.param(BULGE, 7, 5, 5, id="everything fits"),
        pytest.param(BULGE, 5, 6, 6, id="the first op runs again after the bulge"),
        pytest.param(BULGE, 4, math.inf, math.inf, id="the bulge itself needs 5 bytes"),
        pytest.param(DFGraph(ops=(), tensors=()), 1, 0, 0, id="the empty schedule"),
    ],
)
def test_optima_by_hand(graph: DFGraph, budget: int, free: float, fixed: float) -> None:
    assert optimum(Problem(graph=graph, budget=budget)) == free
    assert optimum(Problem(graph=graph, budget=budget, fixed_order=True)) == fixed


@pytest.mark.parametrize("fixed_order", [False, True])
@pytest.mark.parametrize(
    ("layers", "known"),
    [
        (4, {2: math.inf, 3: 15, 4: 11, 5: 10, 6: 9}),
        (8, {2: math.inf, 3: 45, 4: 26, 5: 22, 6: 21, 7: 20, 8: 19, 9: 18, 10: 17}),
    ],
)
def test_unit_chains(layers: int, known: dict[int, float], fixed_order: bool) -> None:
    """With n + 2 bytes no op runs twice; with 3 each backward op computes its input from the start."""
    assert known[layers + 2] == 2 * layers + 1
    assert known[3] == 2 * layers + 1 + layers * (layers - 1) // 2
    for budget, cost in known.items():
        assert optimum(Problem(graph=chain(layers), budget=budget, fixed_order=fixed_order)) == cost

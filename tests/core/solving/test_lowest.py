"""A remembered schedule is valid, keeps its rule of order, and has the least peak."""

from __future__ import annotations

from checkmate import DFGraph, Schedule, generators, simulate
from checkmate.solving.lowest import _MOST, lowest_known, remember_lowest

CHAIN = generators.chain(5)  # eleven ops of cost and size 1
AGAIN = [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 8, 9, 10]
SWAP = DFGraph.from_nodes(cost=[1, 1, 1], size=[2, 3, 1], deps=[[], [], [0, 1]], name="swap")


def _of(graph: DFGraph, sequence: list[int]) -> Schedule:
    return Schedule.from_sequence(graph, sequence)


def test_the_lowest_stays() -> None:
    low, high = _of(CHAIN, AGAIN), _of(CHAIN, list(range(11)))
    assert simulate(CHAIN, low).peak < simulate(CHAIN, high).peak
    for schedule in (high, low, high):
        remember_lowest(CHAIN, schedule, fixed_order=True)
    assert lowest_known(CHAIN, fixed_order=True) is low
    assert lowest_known(CHAIN, fixed_order=False) is low


def test_another_order_is_known_only_where_it_is_free() -> None:
    remember_lowest(SWAP, _of(SWAP, [1, 0, 2]), fixed_order=True)
    assert lowest_known(SWAP, fixed_order=True) is None
    remember_lowest(SWAP, _of(SWAP, [1, 0, 2]), fixed_order=False)
    assert lowest_known(SWAP, fixed_order=True) is None
    assert lowest_known(SWAP, fixed_order=False) is not None


def test_nothing_invalid_is_remembered() -> None:
    graph = generators.chain(3)
    for claim in (None, "schedule", Schedule([]), Schedule([2, 1]), Schedule([99])):
        remember_lowest(graph, claim, fixed_order=False)
    assert lowest_known(graph, fixed_order=False) is None


def test_only_the_last_graphs_are_remembered() -> None:
    first, *others = (DFGraph.from_nodes(cost=[k], size=[1], deps=[[]]) for k in range(_MOST + 1))
    for graph in (first, *others):
        remember_lowest(graph, _of(graph, [0]), fixed_order=False)
    assert lowest_known(first, fixed_order=False) is None
    assert all(lowest_known(graph, fixed_order=False) for graph in others)

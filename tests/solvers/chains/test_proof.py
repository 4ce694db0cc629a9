"""The binomial bound of chains: no way to visit a row backwards takes fewer placements."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import DFGraph, Problem, floor, generators, keep_all_peak
from checkmate.testing.strategies import problems, training_steps
from checkmate_solvers.chains.proof import binomial_bound
from checkmate_solvers.chains.revolve import Revolve, forward_steps


def _least_placements(length: int, slots: int) -> int:
    """By trying every set of pebbles at every visit; between visits there may be any number."""

    def placements(had: frozenset[int], wanted: frozenset[int]) -> int:
        run: set[int] = set()
        for i in wanted:
            base = max((h for h in had if h <= i), default=0)
            run.update(range(base + 1, i + 1))
        return len(run)

    def choices(i: int) -> list[frozenset[int]]:
        below = range(1, i)
        return [frozenset((*some, i)) for k in range(min(slots, i)) for some in combinations(below, k)]

    @cache
    def rest(i: int, had: frozenset[int]) -> int:
        if i == 0:
            return 0
        return min(placements(had, held) + rest(i - 1, held - {i}) for held in choices(i))

    return rest(length, frozenset())


@pytest.mark.parametrize("length", range(1, 7))
def test_no_way_takes_fewer(length: int) -> None:
    for slots in range(1, length + 1):
        assert _least_placements(length, slots) == forward_steps(length + 1, slots)


@pytest.mark.parametrize(("layers", "size"), [(1, 1), (5, 3), (16, 1), (32, 2), (40, 1)])
def test_where_all_layers_are_alike_it_is_attained(layers: int, size: int) -> None:
    graph = generators.chain(layers, size=size)
    for budget in range(floor(graph).size, keep_all_peak(graph), 3 * size):
        for fixed_order in (True, False):
            problem = Problem(graph=graph, budget=budget, fixed_order=fixed_order)
            assert graph.ideal_cost + binomial_bound(problem) == Revolve().solve(problem).cost


@st.composite
def _chains(draw: st.DrawFn) -> DFGraph:
    """Chains whose backward ops read the layer's input, its output, or both; ops with workspace."""
    layers = draw(st.integers(1, 4))
    n = 2 * layers + 1
    reads = [[i - 1] if i else [] for i in range(layers + 1)]
    for j in range(layers + 1, n):
        own, beside = n - 1 - j, n - 2 - j
        reads.append([j - 1, own, *([beside] if beside >= 0 and draw(st.booleans()) else [])])
    numbers = st.lists(st.integers(1, 3), min_size=n, max_size=n)
    graph = DFGraph.from_nodes(cost=draw(numbers), size=draw(numbers), deps=reads)
    spaces = draw(st.lists(st.sampled_from([0, 0, 2]), min_size=n, max_size=n))
    ops = tuple(replace(op, workspace=space) for op, space in zip(graph.ops, spaces, strict=True))
    return replace(graph, ops=ops)


@given(problem=st.one_of(problems(_chains()), problems(training_steps())))
def test_no_schedule_is_below_it(oracle, problem: Problem) -> None:
    assert problem.graph.ideal_cost + binomial_bound(problem) <= oracle.optimum(problem) + 1e-9


def test_costs_may_be_integers() -> None:
    graph = generators.chain(8)
    integers = replace(graph, ops=tuple(replace(op, cost=int(op.cost)) for op in graph.ops))
    assert binomial_bound(Problem(graph=integers, budget=4)) == binomial_bound(Problem(graph=graph, budget=4))


def test_it_proves_nothing_for_other_graphs_and_uncertain_orders() -> None:
    graph = generators.residual(2)
    assert binomial_bound(Problem(graph=graph, budget=keep_all_peak(graph) // 2)) == 0.0
    loose = DFGraph.from_nodes(
        cost=[1] * 7, size=[1] * 7, deps=[[], [0], [1], [2], [2, 3], [1, 3], [0, 4, 5]]
    )
    assert binomial_bound(Problem(graph=loose, budget=4, fixed_order=False)) == 0.0
    assert binomial_bound(Problem(graph=loose, budget=4, fixed_order=True)) >= 0.0

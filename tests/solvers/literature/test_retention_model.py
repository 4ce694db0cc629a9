"""The event grid: a number for each op in each stage, and back."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from checkmate import DFGraph
from checkmate.generators import chain
from checkmate_solvers.literature.retention_intervals import Grid, event


@given(st.integers(0, 300), st.integers(0, 300))
def test_events_are_in_the_order_of_time(first: int, second: int) -> None:
    cells = [(k, v) for k in range(25) for v in range(k + 1)]
    one, other = cells[first], cells[second]
    assert (event(*one) < event(*other)) == (one < other)


def test_an_op_may_run_again_until_nothing_can_need_it() -> None:
    graph = DFGraph.from_nodes(cost=[1] * 4, size=[1] * 4, deps=[[], [0], [1], [1]], outputs=[3])
    once = replace(graph.ops[3], recomputable=False)
    grid = Grid(graph=replace(graph, ops=(*graph.ops[:3], once)), room=9)
    assert grid.last_stage == [4, 4, 2, 4, 4]
    assert [grid.again(v) for v in range(4)] == [
        [event(k, 0) for k in (1, 2, 3, 4)],
        [event(k, 1) for k in (2, 3, 4)],
        [],
        [],
    ]


def test_bytes_are_exact_in_the_largest_unit() -> None:
    grid = Grid(graph=chain(3, size=12), room=100)
    assert set(grid.sizes) == {1}
    assert grid.capacity == 8


@given(st.lists(st.integers(2**50, 2**58), min_size=2, max_size=6))
def test_where_the_count_would_overflow_bytes_are_rounded_up(sizes: list[int]) -> None:
    deps = [[], *([v] for v in range(len(sizes) - 1))]
    grid = Grid(graph=DFGraph.from_nodes(cost=[1] * len(sizes), size=sizes, deps=deps), room=sum(sizes))
    assert grid.capacity * (grid.end + 1) < 2**62
    unit = Fraction(max(sizes), grid.sizes[sizes.index(max(sizes))])
    assert all(units * (unit + 1) >= size for units, size in zip(grid.sizes, sizes, strict=True))
    assert sum(grid.sizes) <= grid.capacity + len(sizes)


def test_costs_are_exact_or_nearly() -> None:
    graph = DFGraph.from_nodes(cost=[7, 0], size=[1, 1], deps=[[], [0]])
    assert Grid(graph=graph, room=9).costs == [7, 0]
    graph = DFGraph.from_nodes(cost=[0.1, 0.3], size=[1, 1], deps=[[], [0]])
    assert Grid(graph=graph, room=9).costs == [round(2**20 / 3), 2**20]


def test_runs_of_a_sequence() -> None:
    graph = chain(2)
    grid = Grid(graph=graph, room=9)
    sequence = [0, 1, 2, 0, *range(3, graph.n_ops)]
    assert grid.runs(sequence)[0] == [event(0, 0), event(3, 0)]
    assert grid.runs(sequence)[1:-1] == [[event(v, v)] for v in range(1, graph.n_ops)]
    assert grid.runs(sequence)[-1] == [grid.end]

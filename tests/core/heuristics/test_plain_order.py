"""The order of the plain program: its peak, and a solution if it fits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import DFGraph, InvalidScheduleError, Problem, Schedule, Status, keep_all_peak, simulate, solve
from checkmate.heuristics import KeepAll, PlainOrder
from checkmate.testing.strategies import graphs


@given(graphs(), st.integers(-2, 2))
def test_in_base_order_it_is_keep_all(graph: DFGraph, more: int) -> None:
    plain = PlainOrder(order=tuple(range(graph.n_ops)))
    assert plain.peak(graph) == keep_all_peak(graph)
    problem = Problem(graph=graph, budget=max(plain.peak(graph) + more, 1))
    answer, expected = plain.solve(problem), KeepAll().solve(problem)
    assert (answer.status, answer.schedule) == (expected.status, expected.schedule)


def test_another_order_fits_where_the_base_order_does_not() -> None:
    graph = DFGraph.from_nodes(cost=[1, 1, 1], size=[4, 4, 1], deps=[[], [], [0]], outputs=[1, 2])
    plain = PlainOrder(order=(0, 2, 1))
    assert keep_all_peak(graph) == 9
    assert plain.peak(graph) == 5
    found = solve(graph, 5, solver=plain)
    assert (found.status, found.peak, found.timeline.recomputes) == (Status.OPTIMAL, 5, 0)
    assert found.schedule.sequence.tolist() == [0, 2, 1]
    assert simulate(graph, Schedule.from_sequence(graph, [0, 2, 1])).peak == 5


def test_an_order_of_another_graph_is_none() -> None:
    graph = DFGraph.from_nodes(cost=[1, 1], size=[4, 4], deps=[[], [0]])
    with pytest.raises(InvalidScheduleError):
        PlainOrder(order=(1, 0)).peak(graph)

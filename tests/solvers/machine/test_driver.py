"""The driver: its best sequence is within the budget it was repaired for, and never gets more expensive."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import DFGraph, Schedule, simulate
from checkmate.solving import Deadline
from checkmate.testing.strategies import budgets, graphs, training_steps, valid_schedules
from checkmate_solvers.machine.driver import Driver

GRAPHS = st.one_of(graphs(), training_steps())


@given(data=st.data(), graph=GRAPHS, fixed_order=st.booleans())
def test_a_repaired_sequence_fits_and_a_search_makes_it_no_more_expensive(
    data, graph: DFGraph, fixed_order: bool
) -> None:
    budget = data.draw(budgets(graph))
    sequence = data.draw(valid_schedules(graph)).sequence
    driver = Driver(graph, fixed_order=fixed_order, seed=0)
    driver.load(sequence)
    assert driver.best.tolist() == sequence.tolist()
    if not driver.repair(budget - graph.base_size, 50):
        return
    repaired = driver.cost
    driver.anneal(budget - graph.base_size, 30, heat=1.0, cooled=0.1)
    timeline = simulate(graph, Schedule.from_sequence(graph, driver.best))
    assert timeline.peak <= budget
    assert timeline.cost == pytest.approx(driver.cost)
    assert driver.cost <= repaired


def test_without_time_nothing_is_repaired() -> None:
    graph = DFGraph.from_nodes(cost=[1] * 4, size=[2, 4, 1, 1], deps=[[], [0], [1], [0, 2]])
    driver = Driver(graph, fixed_order=False, seed=0)
    driver.load([0, 1, 2, 3])
    assert not driver.repair(6, 100, deadline=Deadline(0))
    assert driver.best.tolist() == [0, 1, 2, 3]
    assert driver.repair(6, 100)
    assert driver.best.tolist() == [0, 1, 2, 0, 3]


def test_a_driver_takes_a_sequence_longer_than_its_arrays() -> None:
    graph = DFGraph.from_nodes(cost=[1] * 3, size=[1] * 3, deps=[[], [0], [1]])
    driver = Driver(graph, fixed_order=False, seed=0)
    for sequence in ([0] * 1000 + [1, 2], [0, 1, 2]):
        driver.load(sequence)
        assert driver.best.tolist() == sequence
        assert driver.repair(100, 10)
        assert driver.best.tolist() == [0, 1, 2]
    state = driver._state
    assert state.table.tolist() == [array.ctypes.data for array in state[:-1]]

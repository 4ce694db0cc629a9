"""How low the budget can go: within reach of the floor, judged, and the same again for the same seed."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import DFGraph, Problem, Schedule, floor, generators, keep_all_peak, minimum_budget, simulate
from checkmate.solving import Deadline
from checkmate.testing.strategies import graphs
from checkmate_solvers import auto
from checkmate_solvers.tightening import tightened


def peak(graph: DFGraph, sequence: list[int]) -> int:
    return simulate(graph, Schedule.from_sequence(graph, sequence)).peak


@given(graph=graphs(), fixed_order=st.booleans(), seed=st.integers(0, 9))
def test_the_result_is_valid_and_no_larger_than_the_start(
    graph: DFGraph, fixed_order: bool, seed: int
) -> None:
    problem = Problem(graph=graph, budget=1, fixed_order=fixed_order, seed=seed)
    sequence = tightened(problem)
    assert floor(graph).size <= peak(graph, sequence) <= keep_all_peak(graph)
    if fixed_order:
        firsts = list(dict.fromkeys(sequence))
        assert firsts == sorted(firsts)
    assert tightened(problem) == sequence


@pytest.mark.parametrize(
    "graph", [generators.transformer(4), generators.unet(3), generators.chain(8)], ids=lambda g: g.name
)
def test_training_steps_are_scheduled_near_their_floor(graph: DFGraph) -> None:
    least = peak(graph, tightened(Problem(graph=graph, budget=1, fixed_order=True)))
    assert least - graph.base_size <= 1.05 * (floor(graph).size - graph.base_size)


def test_a_budget_that_is_reached_ends_it() -> None:
    graph = generators.residual(6)
    target = (floor(graph).size + keep_all_peak(graph)) // 2
    sequence = tightened(Problem(graph=graph, budget=target))
    assert floor(graph).size < peak(graph, sequence) <= target
    assert len(sequence) < len(tightened(Problem(graph=graph, budget=1)))


def test_without_time_nothing_is_computed_again() -> None:
    graph = generators.chain(5)
    assert tightened(Problem(graph=graph, budget=1), Deadline(0)) == list(range(graph.n_ops))


@pytest.mark.parametrize(
    "graph", [generators.transformer(2), generators.residual(3), generators.unet(2)], ids=lambda g: g.name
)
@pytest.mark.parametrize("fixed_order", [False, True])
def test_a_peak_that_was_reached_is_reached_again(graph: DFGraph, fixed_order: bool) -> None:
    """A budget that an error names must be met by the solve that asks for it."""
    problem = Problem(graph=graph, budget=1, fixed_order=fixed_order)
    least = peak(graph, tightened(problem))
    for target in (least, (least + keep_all_peak(graph)) // 2):
        assert peak(graph, tightened(replace(problem, budget=target))) <= target


def test_a_pause_that_takes_all_the_time_does_not_leave_the_whole_peak(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A garbage collection of a large process may take more CPU time than the advice of an error has."""
    graph = generators.transformer(7)

    def paused(*_: object, **__: object) -> int:
        until = time.thread_time() + 1.2
        while time.thread_time() < until:
            pass
        return 0

    monkeypatch.setattr(auto, "least_peak_bound", paused)
    least = minimum_budget(graph, time_limit=1).peak
    assert least is not None
    assert least < keep_all_peak(graph)

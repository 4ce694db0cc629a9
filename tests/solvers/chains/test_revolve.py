"""Revolve: the closed form against the recurrence that it solves, and against known optima."""

from __future__ import annotations

import itertools
import math
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import DFGraph, Problem, Schedule, Status, keep_all_peak, simulate
from checkmate.generators import chain, transformer
from checkmate.testing import SolverConformance
from checkmate_solvers.chains import Chain, ChainDP, Revolve, recognise
from checkmate_solvers.chains.revolve import binomial_sequence, forward_steps

from .strategies import KNOWN_CHAINS, training_chains


class TestConformance(SolverConformance):
    solver_name = "revolve"
    examples = 30


@cache
def _steps(length: int, slots: int) -> float:
    """Griewank's recurrence."""
    if length <= 1:
        return 0
    if slots == 0:
        return math.inf
    return min(k + _steps(length - k, slots - 1) + _steps(k, slots) for k in range(1, length))


def test_the_closed_form_solves_the_recurrence() -> None:
    for length, slots in itertools.product(range(1, 40), range(1, 12)):
        assert forward_steps(length, slots) == _steps(length, slots)


@given(st.integers(1, 60), st.integers(1, 61))
def test_the_schedule_has_the_forward_steps_and_slots_of_the_closed_form(layers: int, slots: int) -> None:
    graph = chain(layers)
    found = recognise(graph)
    assert isinstance(found, Chain)
    timeline = simulate(graph, Schedule.from_sequence(graph, binomial_sequence(found, slots)))
    assert timeline.cost == forward_steps(layers + 1, slots) + layers + 1
    assert timeline.peak <= slots + 2  # a state and two gradients, or two states and one, beside slots − 1


@pytest.mark.parametrize("fixed_order", [False, True])
@pytest.mark.parametrize(("layers", "budget", "least"), KNOWN_CHAINS)
def test_it_is_optimal_on_the_known_chains(layers: int, budget: int, least: float, fixed_order: bool) -> None:
    found = Revolve().solve(Problem(graph=chain(layers), budget=budget, fixed_order=fixed_order))
    assert found.cost == least
    assert (found.status is Status.INFEASIBLE) == math.isinf(least)


@given(training_chains(), st.integers(1, 7))
def test_schedules_of_unequal_chains_are_valid(graph: DFGraph, slots: int) -> None:
    found = recognise(graph)
    if isinstance(found, Chain):
        simulate(found.graph, Schedule.from_sequence(found.graph, binomial_sequence(found, slots)))


def test_a_graph_that_is_no_chain_is_unknown_below_its_peak() -> None:
    graph = transformer(1)
    assert Revolve().solve(Problem(graph=graph, budget=keep_all_peak(graph) - 1)).status is Status.UNKNOWN


def test_a_fixed_number_of_slots() -> None:
    problem = Problem(graph=chain(8), budget=6)
    assert [Revolve(slots=c).solve(problem).cost for c in (1, 2, 3, 4)] == [45, 26, 22, 21]
    assert Revolve(slots=5).solve(problem).status is Status.UNKNOWN
    with pytest.raises(ValueError, match="slots is 0"):
        Revolve(slots=0)


@pytest.mark.parametrize("solver", [Revolve(), ChainDP()])
def test_the_answer_says_why_a_graph_is_no_chain(solver: Revolve | ChainDP) -> None:
    graph = transformer(2)
    answer = solver.solve(Problem(graph=graph, budget=keep_all_peak(graph) - 1))
    assert answer.status is Status.UNKNOWN
    assert answer.origin["reason"].startswith(
        "the graph is no chain: only the first 3 of 67 ops are in a row"
    )
    assert solver.solve(Problem(graph=graph, budget=1)).status is Status.INFEASIBLE

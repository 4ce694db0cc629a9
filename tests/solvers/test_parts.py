"""Parts of a graph bound the least budget: never wrongly, and better than the floor."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import DFGraph, Problem, Status, floor, solve
from checkmate.solving import Deadline
from checkmate.testing.strategies import branches, dressed, graphs, problems, training_steps
from checkmate_solvers.auto import Auto
from checkmate_solvers.parts import is_infeasible, least_peak_bound

TINY = problems(st.one_of(graphs(max_ops=8), dressed(st.one_of(training_steps(max_layers=4), branches()))))
TWO_CHAINS = DFGraph.from_nodes(cost=[1] * 5, size=[4, 4, 4, 4, 1], deps=[[], [0], [], [2], [1, 3]])
"""Two inputs of the last op, each made from as many bytes: one has to wait while the other is made."""


@given(TINY)
def test_no_schedule_needs_less_than_the_bound(problem: Problem) -> None:
    graph, fixed_order = problem.graph, problem.fixed_order
    least = Auto().minimum_budget(replace(problem, budget=2**60)).peak
    assert least is not None
    assert floor(graph).size <= least_peak_bound(graph, fixed_order=fixed_order) <= max(least, 1)


@pytest.mark.parametrize("unit", [1, 1_000, 10**9])
def test_the_bound_is_proved_to_the_byte(unit: int) -> None:
    """The search goes up by many bytes at a time; only budgets that failed are proved too small."""
    sizes = [size * unit for size in (4, 4, 4, 4, 1)]
    graph = DFGraph.from_nodes(cost=[1] * 5, size=sizes, deps=[[], [0], [], [2], [1, 3]])
    bound = least_peak_bound(graph)
    assert 0.99 * 12 * unit < bound <= 12 * unit
    assert is_infeasible(Problem(graph=graph, budget=bound - 1))


@given(TINY)
def test_a_problem_that_is_called_infeasible_is(oracle, problem: Problem) -> None:
    if is_infeasible(problem):
        assert math.isinf(oracle.optimum(problem))


def test_the_bound_is_above_the_floor_where_inputs_wait_for_each_other() -> None:
    assert (floor(TWO_CHAINS).size, least_peak_bound(TWO_CHAINS)) == (9, 12)
    assert is_infeasible(Problem(graph=TWO_CHAINS, budget=11))
    assert not is_infeasible(Problem(graph=TWO_CHAINS, budget=12))


def test_a_part_proves_what_is_said_of_a_large_graph() -> None:
    """Sixty chains of the same kind: too many ops for exhaustive search, and each of them needs 12 bytes."""
    deps: list[list[int]] = []
    for i in range(0, 300, 5):
        deps += [[], [i], [i - 1] if i else [], [i + 2], [i + 1, i + 3]]
    graph = DFGraph.from_nodes(cost=[1] * 300, size=[4, 4, 4, 4, 1] * 60, deps=deps)
    answer = solve(graph, 11, throw=False)
    assert floor(graph).size < 11
    assert answer.status is Status.INFEASIBLE
    assert solve(graph, least_peak_bound(graph) + 1).status is not Status.INFEASIBLE


@pytest.mark.parametrize("fixed_order", [False, True])
def test_without_time_the_bound_is_the_floor(fixed_order: bool) -> None:
    assert least_peak_bound(TWO_CHAINS, fixed_order=fixed_order, deadline=Deadline(0.0)) == 9

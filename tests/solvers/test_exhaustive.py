"""The exhaustive search finds what the oracle finds, and what it says when it is stopped is true."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from checkmate import Problem, Schedule, floor, simulate
from checkmate.testing.strategies import branches, dressed, graphs, problems, training_steps
from checkmate_solvers.auto import Auto
from checkmate_solvers.exhaustive import exhaust

ALL = 10**6
TINY = problems(st.one_of(graphs(max_ops=8), dressed(st.one_of(training_steps(max_layers=4), branches()))))


@given(TINY)
def test_it_finds_the_optimum_of_the_oracle(oracle, problem: Problem) -> None:
    optimum, search = oracle.optimum(problem), exhaust(problem, states=ALL)
    assert search.bound == optimum
    assert (search.sequence is None) == math.isinf(optimum)
    if search.sequence is not None:
        timeline = simulate(problem.graph, Schedule.from_sequence(problem.graph, search.sequence))
        assert (timeline.cost, timeline.peak <= problem.budget) == (optimum, True)
        assert timeline.schedule.keeps_base_order or not problem.fixed_order


@given(TINY, st.integers(0, 20))
def test_a_stopped_search_has_a_bound(oracle, problem: Problem, states: int) -> None:
    assert exhaust(problem, states=states).bound <= oracle.optimum(problem)


@given(TINY)
def test_below_the_optimum_there_is_nothing(oracle, problem: Problem) -> None:
    optimum = oracle.optimum(problem)
    assume(optimum > 0)
    assert exhaust(problem, ceiling=optimum, states=ALL) == (None, optimum)


@given(TINY)
def test_the_least_budget_of_a_tiny_graph_is_the_least(oracle, problem: Problem) -> None:
    roomy = replace(problem, budget=2**60)
    least = Auto().minimum_budget(roomy).peak
    assert least is not None
    assert math.isfinite(oracle.optimum(replace(problem, budget=max(least, 1))))
    if least > max(floor(problem.graph).size, 1):
        assert math.isinf(oracle.optimum(replace(problem, budget=least - 1)))

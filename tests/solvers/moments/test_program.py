"""The program of several moments is a relaxation: of every schedule, in whole numbers and in fractions."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import DFGraph, Problem
from checkmate.analysis import needed_ops
from checkmate.generators import chain
from checkmate.testing.strategies import problems
from checkmate_solvers.engines import Highs
from checkmate_solvers.moments.moment import Moment, moment_at
from checkmate_solvers.moments.program import Moments


def _in_line(problem: Problem, order: list[int], most: int) -> list[Moment]:
    """Some moments of which it is certain in what order they come, the first ones in ``order`` rather."""
    seen: dict[int, Moment] = {}
    for at in order:
        moment = moment_at(problem.graph, problem.budget, at, fixed_order=problem.fixed_order)
        if len(seen) < most and all((seen | {at: moment})[max(at, w)].before[min(at, w)] for w in seen):
            seen[at] = moment
    return [seen[at] for at in sorted(seen)]


def _relaxed(moments: list[Moment]) -> float:
    model = Moments(moments)
    return Highs().solve(model.program.relaxed(), time_limit=10, gap=0).bound * model.unit


def _bounds(moments: list[Moment]) -> tuple[float, float]:
    """Of the linear program, and of the whole one."""
    model = Moments(moments)
    return _relaxed(moments), Highs(nodes=1000).solve(model.program, time_limit=10, gap=0).bound * model.unit


@given(problem=problems(), data=st.data())
def test_no_schedule_is_below_the_bound_of_any_moments(oracle, problem: Problem, data) -> None:
    needed = [int(v) for v in np.flatnonzero(needed_ops(problem.graph))]
    moments = _in_line(problem, data.draw(st.permutations(needed)), most=4)
    if not moments or not Moments(moments).program.integral.any():
        return
    limit = oracle.optimum(problem) * (1 + 1e-9) - math.fsum(problem.graph.costs[needed])
    assert max(_bounds(moments)) <= limit


def test_all_moments_of_a_chain_are_as_good_as_its_optimum(oracle) -> None:
    graph = chain(5)
    for budget in (3, 4, 5, 6):
        moments = [moment_at(graph, budget, at, fixed_order=True) for at in range(3, 11)]
        optimum = oracle.optimum(Problem(graph=graph, budget=budget, fixed_order=True))
        assert 11 + _bounds(moments)[1] == pytest.approx(optimum, abs=1e-4)


@given(problem=problems(), data=st.data())
def test_no_further_moment_weakens_the_bound_in_fractions_either(problem: Problem, data) -> None:
    needed = [int(v) for v in np.flatnonzero(needed_ops(problem.graph))]
    moments = _in_line(problem, data.draw(st.permutations(needed)), most=4)
    if len(moments) < 2 or not Moments(moments).program.integral.any():
        return
    fewer = data.draw(st.lists(st.sampled_from(range(len(moments))), min_size=1, unique=True).map(sorted))
    if Moments([moments[k] for k in fewer]).program.integral.any():
        tolerance = 1e-5 * Moments(moments).unit
        assert _relaxed(moments) >= _relaxed([moments[k] for k in fewer]) - tolerance


def test_a_moment_between_two_does_not_let_ops_run_in_halves() -> None:
    """Without the rows for the two alone, half a run before the third and half a run after it would do."""
    graph = DFGraph.from_nodes(
        cost=[4, 3, 1, 1, 3, 4, 2],
        size=[2, 3, 3, 1, 3, 2, 1],
        deps=[[], [0], [1], [2], [3, 2], [4, 1], [5, 0]],
    )
    tight = [moment_at(graph, 8, at, fixed_order=True) for at in (3, 5)]
    roomy = replace(moment_at(graph, 8, 4, fixed_order=True), room=100)
    two, three = _bounds(tight), _bounds([tight[0], roomy, tight[1]])
    assert three == pytest.approx(two, abs=1e-4)


def test_the_cost_unit_is_that_of_ops_that_may_run_again() -> None:
    graph = chain(4)
    expensive = replace(graph, ops=(*graph.ops[:-1], replace(graph.ops[-1], cost=1e9)))
    moments = [moment_at(expensive, 4, at, fixed_order=True) for at in (4, 5)]
    assert Moments(moments).unit == 1.0

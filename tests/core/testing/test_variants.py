"""The oracle is independent of names, of the unit of bytes and of the order of the list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import Problem
from checkmate.testing.conformance.variants import copied, names, random_order, renamed, reordered, scaled
from checkmate.testing.oracle import optimum
from checkmate.testing.strategies import graphs, problems, training_steps

SMALL = st.one_of(graphs(max_ops=6), training_steps())


@given(problem=problems(SMALL), labels=st.lists(names, min_size=1), factor=st.sampled_from([1, 3, 2**30]))
def test_the_optimum_stays(problem: Problem, labels: list[str], factor: int) -> None:
    best = optimum(problem)
    assert optimum(renamed(problem, labels)) == best
    assert optimum(scaled(problem, factor)) == best
    assert copied(problem) == problem
    assert copied(problem).graph is not problem.graph


@given(data=st.data(), problem=problems(SMALL, fixed_order=False))
def test_the_optimum_does_not_depend_on_the_order_of_the_list(data: st.DataObject, problem: Problem) -> None:
    other = reordered(problem, data.draw(random_order(problem.graph)))
    assert optimum(other) == pytest.approx(optimum(problem))
    assert sorted(op.name for op in other.graph.ops) == sorted(op.name for op in problem.graph.ops)

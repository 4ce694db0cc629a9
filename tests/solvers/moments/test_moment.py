"""One moment: what is certain about it, and what is not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from checkmate import DFGraph, Problem, keep_all_peak
from checkmate.analysis import needed_ops
from checkmate.testing.strategies import graphs, problems
from checkmate_solvers.moments.moment import crowded_ops, moment_at


@given(graph=graphs())
def test_every_needed_op_is_before_after_or_unsure(graph: DFGraph) -> None:
    needed = needed_ops(graph)
    for at in np.flatnonzero(needed).tolist():
        for fixed_order in (True, False):
            moment = moment_at(graph, 100, at, fixed_order=fixed_order)
            kinds = np.array([moment.before, moment.after, moment.unsure], dtype=np.int64).sum(axis=0)
            kinds[at] += 1
            assert kinds.tolist() == needed.astype(np.int64).tolist()
            assert not (fixed_order and moment.unsure.any())
            assert not (moment.pinned & ~moment.made).any()
            assert not (moment.needed & ~moment.made).any()


@given(graph=graphs())
def test_facts_that_are_certain_without_the_order_are_so_with_it(graph: DFGraph) -> None:
    for at in np.flatnonzero(needed_ops(graph)).tolist():
        free, fixed = (moment_at(graph, 100, at, fixed_order=order) for order in (False, True))
        assert not (free.before & ~fixed.before).any()
        assert not (free.after & ~fixed.after).any()
        assert (free.room, free.pinned_size) == (fixed.room, fixed.pinned_size)


def test_a_branch_beside_the_moment_is_unsure() -> None:
    graph = DFGraph.from_nodes(cost=[1] * 4, size=[1] * 4, deps=[[], [0], [0], [1, 2]])
    moment = moment_at(graph, 10, 2, fixed_order=False)
    assert [np.flatnonzero(m).tolist() for m in (moment.before, moment.unsure, moment.after)] == [
        [0],
        [1],
        [3],
    ]
    assert np.flatnonzero(moment.needed).tolist() == [1]
    assert np.flatnonzero(moment.pinned).tolist() == [0]


def test_a_needless_op_has_no_moment() -> None:
    graph = DFGraph.from_nodes(cost=[1, 1], size=[1, 1], deps=[[], []], outputs=[0])
    with pytest.raises(ValueError, match="needed by no graph output"):
        moment_at(graph, 10, 1, fixed_order=True)


@given(problem=problems())
def test_crowded_ops_come_in_base_order_and_the_few_are_among_them(problem: Problem) -> None:
    every = crowded_ops(problem)
    assert every == sorted(set(every))
    if needed_ops(problem.graph).all():
        assert bool(every) == (problem.budget < keep_all_peak(problem.graph))
    few = crowded_ops(problem, 3)
    assert set(few) <= set(every)
    assert len(few) == len(set(few)) <= 3

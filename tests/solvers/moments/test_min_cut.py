"""Bounds of single moments: below every schedule, and as strong as their linear program."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given

from checkmate import DFGraph, Op, Problem, Tensor, generators, keep_all_peak
from checkmate.analysis import needed_ops
from checkmate.testing.strategies import branches, dressed, problems
from checkmate_solvers.engines import Highs
from checkmate_solvers.moments.min_cut import MinCut, min_cut
from checkmate_solvers.moments.moment import crowded_ops, moment_at
from checkmate_solvers.moments.program import Moments
from checkmate_solvers.search import Incumbent, answer_easy_cases


def _needed(graph: DFGraph) -> list[int]:
    return [int(v) for v in np.flatnonzero(needed_ops(graph))]


@given(problem=problems())
def test_no_schedule_is_below_the_bound_of_any_moment(oracle, problem: Problem) -> None:
    graph, optimum = problem.graph, oracle.optimum(problem)
    base = math.fsum(graph.costs[_needed(graph)])
    for at in _needed(graph):
        moment = moment_at(graph, problem.budget, at, fixed_order=problem.fixed_order)
        assert base + min_cut(moment).recompute <= optimum * (1 + 1e-9)


@given(problem=problems(dressed(branches())))
def test_it_is_the_linear_relaxation(problem: Problem) -> None:
    """The program knows more: what is larger than the room can't stay, what the gcd leaves is of no use."""
    graph = problem.graph
    for at in _needed(graph):
        moment = moment_at(graph, problem.budget, at, fixed_order=problem.fixed_order)
        free = moment.room - moment.pinned_size
        sizes = graph.sizes[moment.made]
        if free < 0 or not sizes.any() or (graph.sizes[moment.made & ~moment.pinned] > free).any():
            continue
        if moment.room % np.gcd.reduce(sizes):
            continue
        model = Moments([moment])
        linear = Highs().solve(model.program.relaxed(), time_limit=10, gap=0).bound * model.unit
        assert min_cut(moment).recompute == pytest.approx(max(linear, 0), rel=1e-5, abs=1e-5)


def test_the_bound_of_each_moment_is_returned_in_base_order() -> None:
    graph = generators.unet(3)
    problem = Problem(graph=graph, budget=keep_all_peak(graph) // 2)
    best = Incumbent(problem)
    bounds = MinCut().improve(best)
    assert list(bounds) == sorted(set(bounds) & set(crowded_ops(problem)))
    assert best.bound == pytest.approx(best.base + max(bounds.values()))
    assert MinCut().improve(Incumbent(Problem(graph=graph, budget=keep_all_peak(graph)))) == {}


def test_an_op_that_may_run_before_or_after_takes_room_either_way() -> None:
    """Two branches of 4 bytes, one of which is done while the join's other input is made: 4 stay, or 3 do."""
    graph = DFGraph(
        ops=(
            Op(name="source", inputs=(), outputs=(0,), cost=5),
            Op(name="left", inputs=(0,), outputs=(1,), cost=1),
            Op(name="right", inputs=(0,), outputs=(2,), cost=1, workspace=2),
            Op(name="join", inputs=(1, 2), outputs=(3,), cost=1),
        ),
        tensors=tuple(Tensor(name=str(t), size=size) for t, size in enumerate([3, 4, 1, 1])),
        outputs=(3,),
    )
    least = {b: min_cut(moment_at(graph, b, 2, fixed_order=False)).recompute for b in (5, 6, 9, 10)}
    assert least[5] == math.inf
    assert least[6] == least[10] == 0.0  # left runs afterwards: source is there, as right reads it
    fixed = min_cut(moment_at(graph, 9, 2, fixed_order=True)).recompute
    assert 0 < fixed <= 1 + 1e-6


@given(problem=problems())
def test_the_solver_proves_the_best_of_its_moments(problem: Problem) -> None:
    graph = problem.graph
    bounds = [
        min_cut(moment_at(graph, problem.budget, at, fixed_order=problem.fixed_order)).recompute
        for at in crowded_ops(problem)
    ]
    best = Incumbent(problem)
    if not answer_easy_cases(best):
        MinCut(plans=0).improve(best)
        highest = best.base + max(bounds, default=0.0)
        assert best.gap <= 5e-4 or best.bound >= highest * (1 - 1e-9)


def test_the_strongest_moment_of_a_large_graph_is_found_between_those_looked_at() -> None:
    graph = generators.transformer(5)
    half = graph.base_size + (keep_all_peak(graph) - graph.base_size) // 2
    problem = Problem(graph=graph, budget=half, fixed_order=True)
    found = MinCut(moments=4, plans=0).improve(Incumbent(problem))
    bounds = {
        at: min_cut(moment_at(graph, problem.budget, at, fixed_order=True)).recompute
        for at in crowded_ops(problem)
    }
    assert max(found.values()) >= 0.99 * max(bounds.values())


def test_bytes_counted_in_whole_units_do_not_upset_the_steps(oracle) -> None:
    """Beyond 2^29 bytes the cut with the least bytes is known up to a unit only; here another has fewer."""
    graph = DFGraph.from_nodes(
        cost=[5, 1, 5, 1, 1, 6, 6, 5],
        size=[2**30 + 1, 2**30 + 1, 0, 2, 2**30 + 1, 2**30, 2, 1],
        deps=[[], [], [], [0], [1], [3], [2], [4, 5, 6]],
    )
    problem = Problem(graph=graph, budget=2**31 + 4)
    for at in range(8):
        moment = moment_at(graph, problem.budget, at, fixed_order=False)
        assert graph.ideal_cost + min_cut(moment).recompute <= oracle.optimum(problem)


@pytest.mark.parametrize("n", [30, 100])
def test_the_highest_cut_is_the_same_where_a_bound_is_known_that_no_cut_exceeds(n: int) -> None:
    graph = generators.chain(n)
    problem = Problem(graph=graph, budget=keep_all_peak(graph) * 3 // 10)
    fresh = MinCut().improve(Incumbent(problem))
    best = Incumbent(problem)
    best.raise_bound(2 * best.base, "known")
    again = MinCut().improve(best)
    assert max(again, key=again.__getitem__) == max(fresh, key=fresh.__getitem__)
    assert max(again.values()) == max(fresh.values()) > 0

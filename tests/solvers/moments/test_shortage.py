"""Where a decision about some moments leaves too little room, and which moment is proposed for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from hypothesis import given

from checkmate import DFGraph, Problem, generators, keep_all_peak
from checkmate.analysis import liveness, needed_ops, working_sets
from checkmate.testing.strategies import graphs
from checkmate_solvers.moments.cut_milp import solve_cuts
from checkmate_solvers.moments.moment import Decision, Moment, crowded_ops, moment_at
from checkmate_solvers.moments.shortage import promising, shortage
from checkmate_solvers.search import Incumbent


def moments_of(problem: Problem) -> Callable[[int], Moment]:
    return partial(moment_at, problem.graph, problem.budget, fixed_order=problem.fixed_order)


@given(graph=graphs())
def test_without_recomputation_it_is_the_memory_of_the_base_order_over_the_budget(graph: DFGraph) -> None:
    order = np.flatnonzero(needed_ops(graph))
    problem = Problem(graph=graph, budget=max(keep_all_peak(graph) // 2, 1))
    short = shortage(problem, np.zeros(graph.n_ops))
    assert (short[order] + problem.budget).tolist() == liveness(graph, order.tolist()).memory.tolist()


@given(graph=graphs())
def test_if_all_runs_again_each_op_needs_room_for_itself_alone(graph: DFGraph) -> None:
    problem = Problem(graph=graph, budget=1)
    short = shortage(problem, np.ones(graph.n_ops))
    assert (short + 1).tolist() == working_sets(graph).tolist()


def test_half_a_run_takes_half_the_bytes() -> None:
    graph = generators.chain(6)
    problem = Problem(graph=graph, budget=1)
    none, half, whole = (shortage(problem, np.full(graph.n_ops, share)) for share in (0.0, 0.5, 1.0))
    assert np.allclose(half, (none + whole) / 2)


def test_the_most_promising_moment_raises_the_bound_of_the_first() -> None:
    graph = generators.unet(4)
    problem = Problem(graph=graph, budget=int(0.45 * keep_all_peak(graph)), fixed_order=True)
    best, moment = Incumbent(problem), moments_of(problem)

    def proved(*ops: int) -> float:
        return solve_cuts([moment(at) for at in ops], time_limit=10, nodes=0, linear=True).recompute

    first = max(np.flatnonzero(needed_ops(graph)).tolist(), key=proved)
    alone = solve_cuts([moment(first)], time_limit=10, nodes=0, linear=True)
    proposed = promising(best, (first,), alone, moment)
    assert first not in proposed
    assert max(proved(*sorted((first, at))) for at in list(proposed)[:3]) > proved(first)


def test_in_any_order_each_proposed_moment_is_certain_to_come_before_or_after_the_others() -> None:
    graph = generators.random_layered(150, training=True)
    problem = Problem(graph=graph, budget=keep_all_peak(graph) // 2)
    moment = moments_of(problem)
    first = moment(crowded_ops(problem, 1)[0])
    decision = solve_cuts([first], time_limit=10, nodes=0, linear=True)
    proposed = list(promising(Incumbent(problem), (first.at,), decision, moment))
    assert proposed
    assert (first.before | first.after)[proposed].all()


def test_without_time_the_fullest_and_the_largest_working_sets_are_proposed() -> None:
    graph = generators.unet(3)
    problem = Problem(graph=graph, budget=int(0.5 * keep_all_peak(graph)), fixed_order=True, time_limit=1e-6)
    keep = {0: np.ones(graph.n_tensors, dtype=np.bool_)}
    nothing = Decision(recompute=0.0, keep=keep, again=np.zeros((1, graph.n_ops)))
    proposed = promising(Incumbent(problem), (0,), nothing, moments_of(problem))
    memory = liveness(graph, list(range(graph.n_ops))).memory
    assert set(proposed.values()) == {0.0}
    assert next(iter(proposed)) == memory.argmax()
    assert max(range(1, graph.n_ops), key=working_sets(graph).__getitem__) in proposed


def test_a_decision_that_found_nothing_proposes_nothing() -> None:
    graph = generators.unet(3)
    best = Incumbent(Problem(graph=graph, budget=keep_all_peak(graph)))
    assert promising(best, (0,), Decision(recompute=0.0, keep={}), lambda _: None) == {}  # type: ignore[arg-type, return-value]

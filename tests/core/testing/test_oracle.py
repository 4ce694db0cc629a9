"""The oracle: cases solved by hand, agreement with a plain search over every step, and judged schedules."""

from __future__ import annotations

import heapq
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import DFGraph, Op, Problem, Tensor, keep_all_peak, simulate
from checkmate.analysis import needed_ops
from checkmate.testing.oracle import cheapest_schedule, optimum
from checkmate.testing.strategies import graphs, problems, training_steps


def plain_optimum(problem: Problem) -> float:
    """Dijkstra over single computes and frees: slow and obvious."""
    graph = problem.graph
    heap = [(0.0, 0, (), frozenset(graph.inputs))]
    seen: set[tuple[frozenset[int], frozenset[int]]] = set()
    ticket = 0
    while heap:
        cost, _, ran, resident = heapq.heappop(heap)
        held = graph.fixed_size + sum(graph.tensors[t].size for t in resident)
        if held > problem.budget or (frozenset(ran), resident) in seen:
            continue
        seen.add((frozenset(ran), resident))
        if resident.issuperset(graph.outputs):
            return cost
        following = [(cost, ran, resident - {t}) for t in resident.difference(graph.inputs)]
        for v, op in enumerate(graph.ops):
            late = problem.fixed_order and v not in ran and any(u > v for u in ran)
            once = v in ran and not op.recomputable
            fresh = sum(graph.tensors[t].size for t in op.outputs) + op.workspace
            if resident.issuperset(op.inputs) and not late and not once and held + fresh <= problem.budget:
                now = ran if v in ran else (*ran, v)
                following.append((cost + op.cost, now, resident.union(op.outputs)))
        for entry in following:
            ticket += 1
            heapq.heappush(heap, (entry[0], ticket, *entry[1:]))
    return math.inf


@given(problem=problems(graphs(max_ops=4)))
def test_it_agrees_with_a_plain_search(problem: Problem) -> None:
    assert optimum(problem) == pytest.approx(plain_optimum(problem), rel=1e-12)


@given(problem=problems(training_steps(max_layers=3)))
def test_it_agrees_with_a_plain_search_on_training_steps(problem: Problem) -> None:
    assert optimum(problem) == plain_optimum(problem)


@given(problem=problems())
def test_the_judge_confirms_budget_and_cost_of_the_schedule(problem: Problem) -> None:
    best, schedule = optimum(problem), cheapest_schedule(problem)
    assert (schedule is None) == math.isinf(best)
    if schedule is not None:
        timeline = simulate(problem.graph, schedule)
        assert timeline.peak <= problem.budget
        assert timeline.cost == pytest.approx(best, rel=1e-12)
        first = list(dict.fromkeys(schedule.sequence.tolist()))
        assert not problem.fixed_order or first == sorted(first)


@given(graph=graphs(), fixed_order=st.booleans())
def test_with_room_for_everything_the_optimum_is_the_cost_of_needed_ops(
    graph: DFGraph, fixed_order: bool
) -> None:
    problem = Problem(graph=graph, budget=max(1, keep_all_peak(graph)), fixed_order=fixed_order)
    schedule = cheapest_schedule(problem)
    assert schedule is not None
    assert simulate(graph, schedule).cost == pytest.approx(graph.costs[needed_ops(graph)].sum(), rel=1e-12)


def test_four_bytes_in_three() -> None:
    """The first tensor must be freed and made again, or with a free order be made last."""
    deps = [[], [], [1], [0, 2]]
    graph = DFGraph.from_nodes(cost=[5, 1, 1, 1], size=[1] * 4, deps=deps)
    assert optimum(Problem(graph=graph, budget=3, fixed_order=True)) == 8
    assert optimum(Problem(graph=graph, budget=2)) == math.inf
    skip = DFGraph.from_nodes(cost=[5, 1, 1, 1], size=[1, 2, 1, 1], deps=deps)
    assert optimum(Problem(graph=skip, budget=3, fixed_order=True)) == 13
    assert optimum(Problem(graph=skip, budget=3, fixed_order=False)) == 8


def test_an_older_copy_may_be_freed_before_its_op_runs_again() -> None:
    """One op makes x (2 bytes) and y (1 byte). With 4 bytes, x must be dropped to read y, and made again."""
    graph = DFGraph(
        ops=(
            Op(name="both", inputs=(), outputs=(0, 1), cost=3),
            Op(name="large", inputs=(1,), outputs=(2,), cost=1, workspace=2),
            Op(name="end", inputs=(0, 2), outputs=(3,), cost=1),
        ),
        tensors=tuple(Tensor(name=name, size=size) for name, size in zip("xyzw", (2, 1, 1, 0), strict=True)),
        outputs=(3,),
    )
    assert optimum(Problem(graph=graph, budget=4)) == 8
    assert optimum(Problem(graph=graph, budget=6)) == 5
    assert optimum(Problem(graph=graph, budget=3)) == math.inf


def test_outputs_of_once_only_ops_are_kept_or_the_budget_is_missed() -> None:
    """x waits while four bytes are made and freed: with 5 bytes it can't stay, with 7 it can."""
    graph = DFGraph.from_nodes(cost=[1] * 5, size=[2, 1, 4, 1, 1], deps=[[], [0], [1], [2], [3, 0]])
    once = replace(graph, ops=(replace(graph.ops[0], recomputable=False), *graph.ops[1:]))
    for budget, optima in {4: (math.inf, math.inf), 5: (6, math.inf), 6: (6, math.inf), 7: (5, 5)}.items():
        assert tuple(optimum(Problem(graph=g, budget=budget)) for g in (graph, once)) == optima


@pytest.mark.parametrize(("outputs", "cost"), [((), 0), ((0,), 1), ((0, 1), 2)])
def test_only_ops_that_an_output_needs_run(outputs: tuple[int, ...], cost: float) -> None:
    graph = DFGraph.from_nodes(cost=[1, 1], size=[1, 1], deps=[[], [0]], outputs=outputs)
    assert optimum(Problem(graph=graph, budget=9)) == cost

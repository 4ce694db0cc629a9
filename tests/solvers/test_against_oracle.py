"""Laws of every solver, against the exhaustive oracle: what it finds is valid, what it proves is true."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import DFGraph, Problem, Solution, Status, floor, keep_all_peak, simulate
from checkmate.heuristics.eviction import StaticEviction
from checkmate.plugins import Solver
from checkmate.testing.strategies import graphs
from checkmate_solvers.auto import Auto
from checkmate_solvers.cutmilp import CutMilp
from checkmate_solvers.mincut import MinCut

SOLVERS = [Auto(), MinCut(), CutMilp(), StaticEviction(rule="belady"), StaticEviction(rule="dtr")]


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Small graphs of every kind, with budgets from just below the floor to the keep-everything peak."""
    graph = _spread(draw, draw(graphs(max_ops=6)))
    return Problem(graph=graph, budget=_budget(draw, graph), fixed_order=draw(st.booleans()))


@st.composite
def training_steps(draw: st.DrawFn) -> Problem:
    """Chains with mirrored backward and random skips: where recomputation really happens."""
    layers = draw(st.integers(2, 4))
    n = 2 * layers
    reads = [[i - 1] if i else [] for i in range(layers)] + [[j - 1, n - 1 - j] for j in range(layers, n)]
    for i in draw(st.sets(st.integers(2, layers), max_size=1)):
        reads[i] = sorted({*reads[i], draw(st.integers(0, i - 1))})
    numbers = st.lists(st.integers(1, 4), min_size=n, max_size=n)
    graph = _spread(draw, DFGraph.from_nodes(cost=draw(numbers), size=draw(numbers), deps=reads))
    return Problem(graph=graph, budget=_budget(draw, graph), fixed_order=draw(st.booleans()))


def _spread(draw: st.DrawFn, graph: DFGraph) -> DFGraph:
    """The same graph, at times with costs of very unequal magnitude or sizes around a power of two."""
    magnitudes = draw(st.sampled_from([[1.0], [1e-9], [1e-7, 1.0], [1.0, 1e7], [1.0, 1e4, 1e10]]))
    unit = draw(st.sampled_from([0, 0, 2**29, 2**30, 2**40, 2**55]))
    costs = [op.cost * draw(st.sampled_from(magnitudes)) for op in graph.ops]
    sizes = [t.size if not unit else unit * (t.size > 2) + draw(st.integers(0, 2)) for t in graph.tensors]
    return replace(
        graph,
        ops=tuple(replace(op, cost=cost) for op, cost in zip(graph.ops, costs, strict=True)),
        tensors=tuple(replace(t, size=size) for t, size in zip(graph.tensors, sizes, strict=True)),
    )


def _budget(draw: st.DrawFn, graph: DFGraph) -> int:
    return draw(st.integers(max(1, floor(graph).size - 1), max(1, keep_all_peak(graph))))


@pytest.mark.parametrize("solver", SOLVERS, ids=["auto", "min-cut", "cut-milp", "belady", "dtr"])
@given(problem=st.one_of(problems(), training_steps()))
def test_what_is_found_is_valid_and_what_is_proved_is_true(oracle, solver: Solver, problem: Problem) -> None:
    optimum = oracle.optimum(problem)
    solution = solver.solve(problem)
    tolerance = 1e-9 * optimum if math.isfinite(optimum) else 0.0
    assert solution.bound <= optimum + tolerance
    if solution.status is Status.INFEASIBLE:
        assert optimum == math.inf
    if solution.schedule is not None:
        timeline = simulate(problem.graph, solution.schedule)
        assert timeline.peak <= problem.budget
        assert timeline.cost >= optimum - tolerance
        assert not problem.fixed_order or _first_runs(solution) == sorted(_first_runs(solution))


def _first_runs(solution: Solution) -> list[int]:
    assert solution.schedule is not None
    return list(dict.fromkeys(solution.schedule.sequence.tolist()))


def test_the_oracle_knows_a_case_solved_by_hand(oracle) -> None:
    """Four tensors of one byte; with three bytes, the first must be freed and made again."""
    graph = DFGraph.from_nodes(cost=[5, 1, 1, 1], size=[1] * 4, deps=[[], [], [1], [0, 2]])
    assert oracle.optimum(Problem(graph=graph, budget=3, fixed_order=True)) == 8
    assert oracle.optimum(Problem(graph=graph, budget=2)) == math.inf
    skip = DFGraph.from_nodes(cost=[5, 1, 1, 1], size=[1, 2, 1, 1], deps=[[], [], [1], [0, 2]])
    assert oracle.optimum(Problem(graph=skip, budget=3, fixed_order=True)) == 13
    assert oracle.optimum(Problem(graph=skip, budget=3, fixed_order=False)) == 8


def test_auto_is_near_the_optimum_on_most_small_training_steps(oracle) -> None:
    gaps = []
    for costs, budget in itertools.product(itertools.product((1, 3), repeat=4), (3, 4, 5)):
        reads = [[], [0], [1], [2], [3, 3], [4, 3], [5, 2], [6, 1], [7, 0]]
        graph = DFGraph.from_nodes(cost=[*costs, *reversed(costs), 1], size=[1] * 9, deps=reads)
        problem = Problem(graph=graph, budget=budget, fixed_order=True)
        optimum = oracle.optimum(problem)
        solution = Auto().solve(problem)
        assert solution.schedule is not None
        gaps.append(solution.cost / optimum - 1)
    gaps.sort()
    assert gaps[len(gaps) // 2] == 0
    assert gaps[len(gaps) * 9 // 10] <= 0.05

"""Retention intervals: the laws of solvers, and its own space searched exhaustively."""

from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import DFGraph, Op, Problem, Progress, Status, Tensor, keep_all_peak
from checkmate.generators import chain, residual, transformer
from checkmate.plugins import Solver
from checkmate.testing import SolverConformance
from checkmate.testing.strategies import graphs, problems, training_steps

from .space import best_in_stages

pytest.importorskip("ortools")
from checkmate_solvers.literature import RetentionIntervals
from checkmate_solvers.literature.retention_intervals import Grid, Model

SMALL = st.one_of(graphs(max_ops=5), training_steps(max_layers=3))


class TestRetentionIntervals(SolverConformance):
    solver_name = "retention-intervals"
    examples = 20


class TestFromNothing(SolverConformance):
    guarantee = "heuristic"
    features: ClassVar[frozenset[str]] = frozenset()
    examples = 8

    def solver(self) -> Solver:
        return RetentionIntervals(warm_start=False, copies=3)


@pytest.mark.parametrize("copies", [1, 2, 3])
@given(problem=problems(SMALL, fixed_order=True))
def test_it_is_exact_in_its_space(copies: int, problem: Problem) -> None:
    found = RetentionIntervals(copies=copies, warm_start=False).solve(problem)
    assert found.cost == pytest.approx(best_in_stages(problem, copies), rel=1e-6)


def test_an_op_can_be_held_back_by_how_often_it_may_run() -> None:
    """With room for four, the first layer of eight has to run three times or more."""
    problem = Problem(graph=chain(8), budget=4)
    assert RetentionIntervals(warm_start=False).solve(problem).status is Status.UNKNOWN
    assert RetentionIntervals(copies=4, warm_start=False).solve(problem).cost == 26


def test_all_is_exact_to_the_byte() -> None:
    unit = 2**33 + 5
    problems = [Problem(graph=chain(5, size=unit), budget=5 * unit - spare) for spare in (1, 0)]
    assert [RetentionIntervals(warm_start=False).solve(problem).cost for problem in problems] == [14, 13]


def test_outputs_pass_workspace_and_come_back_after_the_last_op() -> None:
    graph = DFGraph(
        ops=(
            Op(name="first", inputs=(), outputs=(0, 2), cost=1),
            Op(name="last", inputs=(), outputs=(1,), cost=1, workspace=4),
        ),
        tensors=(Tensor(name="a", size=2), Tensor(name="b", size=1), Tensor(name="unread", size=2)),
        outputs=(0, 1),
    )
    solve = RetentionIntervals(warm_start=False).solve
    assert solve(Problem(graph=graph, budget=5, fixed_order=True)).cost == 3
    assert solve(Problem(graph=graph, budget=7, fixed_order=True)).cost == 2


def test_its_start_is_a_whole_solution() -> None:
    """With the hint alone, and no search, CP-SAT has the schedule that it starts from."""
    from ortools.sat.python import cp_model

    graph = residual(4)
    sequence = [0, 1, 2, 0, *range(3, graph.n_ops)]
    model = Model(Grid(graph=graph, room=10**15), copies=2)
    model.start_from(sequence)
    solver = cp_model.CpSolver()
    solver.parameters.fix_variables_to_their_hinted_value = True
    assert solver.solve(model.cp) == cp_model.OPTIMAL
    assert model.sequence(solver.value) == sequence


def test_each_solution_is_reported_and_no_bound_is_claimed() -> None:
    graph, seen = chain(12), list[Progress]()
    problem = Problem(graph=graph, budget=7, on_progress=seen.append)
    solution = RetentionIntervals(warm_start=False).solve(problem)
    assert solution.status is Status.FEASIBLE
    assert solution.bound == graph.ideal_cost
    costs = [report.incumbent for report in seen if report.incumbent is not None]
    assert costs[-1] == solution.cost
    assert costs == sorted(costs, reverse=True)
    assert seen[-1].step.endswith("no op runs more than 2 times")


@pytest.mark.parametrize("threads", [1, 2])
def test_an_exception_of_a_listener_comes_out(threads: int) -> None:
    def interrupt(report: Progress) -> None:
        if report.step == "retention-intervals":
            raise KeyboardInterrupt

    problem = Problem(graph=chain(12), budget=7, threads=threads, on_progress=interrupt)
    with pytest.raises(KeyboardInterrupt):
        RetentionIntervals(warm_start=False).solve(problem)


def test_a_graph_too_large_for_the_time_has_no_answer() -> None:
    graph = transformer(24)
    problem = Problem(graph=graph, budget=keep_all_peak(graph) // 2, time_limit=1)
    assert RetentionIntervals(warm_start=False).solve(problem).status is Status.UNKNOWN


def test_at_least_one_run() -> None:
    with pytest.raises(ValueError, match="copies is 0"):
        RetentionIntervals(copies=0)

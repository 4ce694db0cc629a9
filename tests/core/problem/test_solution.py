"""Problems and solutions: invalid settings, and the facts of a result."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from checkmate import (
    BudgetError,
    DFGraph,
    InvalidScheduleError,
    Problem,
    Schedule,
    Solution,
    SolverError,
    Status,
)

GRAPH = DFGraph.from_nodes(
    cost=[1, 2, 1], size=[4, 4, 2], deps=[[], [0], [1]], names=["embed", "attend", "loss"], name="net"
)
ONCE = Schedule.from_sequence(GRAPH, [0, 1, 2])
TWICE = Schedule.from_sequence(GRAPH, [0, 1, 0, 1, 2])


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"budget": 0}, BudgetError),
        ({"budget": -1}, BudgetError),
        ({"budget": 1.5}, BudgetError),
        ({"budget": True}, BudgetError),
        ({"budget": 8, "time_limit": 0}, ValueError),
        ({"budget": 8, "time_limit": math.nan}, ValueError),
        ({"budget": 8, "threads": 0}, ValueError),
    ],
)
def test_senseless_problems_are_refused(settings: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Problem(graph=GRAPH, **settings)


def test_the_ideal_schedule_is_optimal_for_free() -> None:
    solution = Solution.found(Problem(graph=GRAPH, budget=8), ONCE)
    assert (solution.status, solution.bound, solution.gap) == (Status.OPTIMAL, 4.0, 0.0)
    assert solution.explain() == "nothing is recomputed"


def test_facts_of_a_solution() -> None:
    problem = Problem(graph=GRAPH, budget=12)
    solution = Solution.found(problem, TWICE, bound=3.5, origin={"schedule": "hand"})
    assert solution.status is Status.FEASIBLE
    assert (solution.cost, solution.bound, solution.peak) == (7.0, 4.0, 8)
    assert solution.overhead == pytest.approx(0.75)
    assert solution.gap == pytest.approx(3 / 7)
    assert solution.schedule == TWICE
    head, first, second = solution.explain().splitlines()
    assert head.split() == ["recomputed", "times", "bytes", "saved", "extra", "cost", "why"]
    assert first.split()[:2] == ["attend", "2×"]
    assert second.split()[:2] == ["embed", "2×"]
    assert solution.explain(rows=1).splitlines()[2].split() == ["…", "and", "1", "more", "1"]
    timed = Solution.found(Problem(graph=replace(GRAPH, cost_unit="s"), budget=12), TWICE)
    assert timed.explain().splitlines()[1].split()[2:6] == ["4", "B", "2", "s"]
    assert "feasible" in repr(solution)


def test_a_bound_that_meets_the_cost_proves_the_optimum() -> None:
    problem = Problem(graph=GRAPH, budget=12)
    assert Solution.found(problem, TWICE, bound=7.0).status is Status.OPTIMAL
    with pytest.raises(SolverError, match=r"no schedule costs less than 7\.1"):
        Solution.found(problem, TWICE, bound=7.1)
    with pytest.raises(SolverError, match="less than nan"):
        Solution.found(problem, TWICE, bound=math.nan)


def test_an_answer_that_the_judge_rejects_is_refused() -> None:
    with pytest.raises(SolverError, match=r"^the solver gave .* over the budget"):
        Solution.found(Problem(graph=GRAPH, budget=7), ONCE)
    with pytest.raises(SolverError, match=r"^solver 'k2' gave .* over the budget"):
        Solution.found(Problem(graph=GRAPH, budget=7), ONCE, solver="k2")
    with pytest.raises(InvalidScheduleError):
        Solution.found(Problem(graph=GRAPH, budget=8), Schedule.from_sequence(GRAPH, [0, 1]))


@pytest.mark.parametrize("make", [Solution.infeasible, Solution.unknown])
def test_no_schedule(make: Any) -> None:
    solution = make(Problem(graph=GRAPH, budget=1))
    assert solution.schedule is solution.peak is None
    assert solution.cost == solution.overhead == solution.gap == math.inf
    assert "no schedule" in solution.explain()
    assert "1 B" in repr(solution)

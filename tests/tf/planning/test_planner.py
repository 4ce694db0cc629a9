"""How often a step is solved: bytes that the simulator does not count are reserved beforehand."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

import checkmate.tf2
from checkmate import DFGraph, InfeasibleBudgetError, Problem, Schedule, Solution, keep_all_peak
from checkmate_tf.planning import decide as deciding
from checkmate_tf.planning import priced_step
from checkmate_tf.planning.options import Options

SPEC = tf.TensorSpec([128, 128])


def step(x: tf.Tensor) -> tf.Tensor:
    """The gradient of a chain."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x
        for _ in range(12):
            y = tf.sin(tf.tanh(y))
        loss = tf.reduce_sum(y * y)
    return tape.gradient(loss, x)


class Decisions:
    """Calls ``decide``, and keeps the arguments."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.decide = deciding.decide
        self.graphs: list[DFGraph] = []
        self.options: list[Options] = []
        self.starts: list[object] = []
        monkeypatch.setattr(deciding, "decide", self)

    def __call__(self, graph: DFGraph, budget: int, options: Options, **others: Any) -> Solution:
        self.graphs.append(graph)
        self.options.append(options)
        self.starts.append(others["start"])
        return self.decide(graph, budget, options, **others)


@pytest.fixture
def decisions(monkeypatch: pytest.MonkeyPatch) -> Decisions:
    return Decisions(monkeypatch)


def planned(budget: str = "65%", **settings: Any) -> checkmate.tf2.StepPlan:
    return checkmate.tf2.function(step, budget=budget, cost_model="flops", cache=False, **settings).plan(SPEC)


def test_a_step_is_solved_once_with_the_bytes_reserved_that_the_traced_order_needs(
    decisions: Decisions,
) -> None:
    plan = planned()
    (graph,) = decisions.graphs
    assert graph.fixed_size > plan.step.graph.fixed_size
    assert plan.expected <= plan.solution.problem.budget


def test_a_schedule_that_is_over_the_budget_is_where_a_short_second_solve_starts(
    decisions: Decisions, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, counted = priced_step.expected_bytes, list[int]()

    def more(*args: Any) -> int:
        counted.append(expected(*args))
        return counted[-1] + 2**16 * (len(counted) == 3)  # after the traced order and the plain step

    monkeypatch.setattr(priced_step, "expected_bytes", more)
    plan = planned()
    first, second, *_ = decisions.options
    assert second.time_limit < first.time_limit
    assert decisions.starts[0] is None
    assert decisions.starts[1] is not None
    assert decisions.graphs[1].fixed_size > decisions.graphs[0].fixed_size
    assert plan.expected <= plan.solution.problem.budget


def test_a_smaller_step_that_needs_all_of_the_budget_is_not_solved_again(decisions: Decisions) -> None:
    function = checkmate.tf2.function(step, budget="65%", cost_model="flops", cache=False)
    first, solves = function.plan(SPEC), len(decisions.graphs)
    second = function.plan(tf.TensorSpec([127, 128]))
    assert (second.solution.solver, len(decisions.graphs)) == ("known", solves)
    assert second.expected < first.expected <= first.solution.problem.budget


def test_only_the_default_time_limit_is_shortened(decisions: Decisions) -> None:
    planned()
    planned(time_limit=7.0)
    assert decisions.options[0].time_limit < 7.0
    assert decisions.options[1].time_limit == 7.0


def test_fewer_bytes_are_reserved_where_many_are_left_unused(
    decisions: Decisions, monkeypatch: pytest.MonkeyPatch
) -> None:
    cost = planned().solution.cost
    expected, counted = priced_step.expected_bytes, list[int]()

    def more(*args: Any) -> int:
        counted.append(expected(*args))
        return counted[-1] + 2**17 * (len(counted) == 1)  # of the traced order

    monkeypatch.setattr(priced_step, "expected_bytes", more)
    decisions.graphs.clear()
    plan = planned()
    first, second, *_ = decisions.graphs
    assert second.fixed_size < first.fixed_size
    assert plan.expected <= plan.solution.problem.budget
    assert plan.solution.cost <= 1.1 * cost


def test_the_budget_that_an_error_names_stays_the_least_that_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def everything_kept(graph: DFGraph, **settings: Any) -> Solution:
        problem = Problem(graph=graph, budget=keep_all_peak(graph))
        return Solution.found(problem, Schedule.from_sequence(graph, range(graph.n_ops)), solver="rules")

    def least() -> int:
        with pytest.raises(InfeasibleBudgetError) as caught:
            planned("1 B")
        assert caught.value.minimum is not None
        return caught.value.minimum

    known = least()
    monkeypatch.setattr(deciding, "minimum_budget", everything_kept)
    assert least() == known
    assert planned(f"{known} B").expected <= known

"""Plan a function: capture its ops, trace the graph, price it, solve, emit the program, record the plan.

function ↦ captured ↦ traced graph ↦ priced step ↦ solution ↦ schedule ↦ program
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from checkmate import Solution
from checkmate.framework import AUTO, schedule_of
from checkmate_tf.capture.function_capture import capture
from checkmate_tf.planning.decide import Decision, PlainStep, budget_bytes
from checkmate_tf.planning.options import Options
from checkmate_tf.planning.priced_step import PricedStep, price_step
from checkmate_tf.planning.step_plan import StepPlan
from checkmate_tf.tracing.step_graph import TracedGraph, is_smaller, trace

__all__ = ["Planner"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """Plans functions, stage by stage.

    Attributes:
        options: how to plan.
        optimizer: ids of the handles of an optimizer's variables.
    """

    options: Options
    optimizer: Collection[int] = ()

    def price(self, function: Any) -> PricedStep:
        """The priced step that :meth:`plan` would solve for a ``ConcreteFunction``; raises its errors."""
        return price_step(self._trace(function), self.options, self.optimizer)

    def plan(self, function: Any, like: StepPlan | None = None) -> StepPlan:
        """The plan of a ``ConcreteFunction`` whose arguments have known shapes.

        The earlier plan ``like`` is used again if the step is the same on smaller tensors: the last batch of
        an epoch needs no solver. A share as the budget never gives fewer bytes than in ``like``.

        Raises:
            BudgetError: if the budget can't be read, or the free memory of the device is unknown.
            InfeasibleBudgetError: if no schedule was found; names a budget that works.
            UnsupportedFunctionError: if the function can't be planned.
        """
        traced, options = self._trace(function), self.options
        if like is not None and is_smaller(traced, like.traced):
            plan = _on_smaller(like, traced)
            if plan.expected <= plan.solution.problem.budget:  # smaller chunks may leave larger gaps
                return plan
        step = price_step(traced, options, self.optimizer)
        plain = PlainStep.of(step)
        least = like.solution.problem.budget if like is not None and options.budget != AUTO else 0
        budget = max(budget_bytes(options, step, plain), least)
        return Decision(step=step, plain=plain, budget=budget, options=options).plan()

    def _trace(self, function: Any) -> TracedGraph:
        self.options.report("rewriting the graph")
        captured = capture(function)
        self.options.report("reading the graph")
        return trace(captured)


def _on_smaller(plan: StepPlan, traced: TracedGraph) -> StepPlan:
    """A plan for the same step on smaller tensors."""
    _log.info("the step equals an earlier one on smaller tensors: its schedule is used again")
    step, problem = plan.step.on_smaller(traced), plan.solution.problem
    problem = replace(problem, graph=replace(problem.graph, tensors=step.graph.tensors))
    program, expected = step.emit(plan.schedule)
    return replace(
        plan,
        step=step,
        solution=Solution.found(problem, schedule_of(plan.solution), solver="known"),
        program=program,
        plain_peak=step.plain_peak,
        expected=expected,
    )

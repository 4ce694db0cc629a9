"""Plan a function: capture its ops, trace the graph, price it, solve, emit the program, record the plan.

function ↦ captured ↦ traced graph ↦ priced step ↦ solution ↦ schedule ↦ program
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from checkmate_tf.capture.function_capture import UnsupportedFunctionError, capture
from checkmate_tf.planning.decide import Decision, PlainStep, budget_bytes
from checkmate_tf.planning.options import Options
from checkmate_tf.planning.priced_step import PricedStep, price_step
from checkmate_tf.planning.step_plan import StepPlan
from checkmate_tf.tracing.step_graph import TracedGraph, is_smaller, trace

__all__ = ["Planner"]


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

    def plan(
        self,
        function: Any,
        known: Iterable[StepPlan] = (),
        least: int = 0,
        largest: Sequence[tf.TensorSpec] | None = None,
    ) -> StepPlan:
        """The plan of a ``ConcreteFunction`` whose arguments have known shapes, or shapes up to ``largest``.

        Of the ``known`` plans, the nearest one of the same step on larger tensors saves to measure ops, and
        its schedule saves to solve, unless it recomputes in vain. The budget is at least ``least`` bytes.

        Raises:
            BudgetError: if the budget can't be read, or the free memory of the device is unknown.
            InfeasibleBudgetError: if no schedule was found; names a budget that works.
            UnsupportedFunctionError: if the function can't be planned.
        """
        traced = self._trace(function, largest)
        if largest is not None and any(traced.uncounted):
            raise UnsupportedFunctionError("some bytes can be counted for known sizes only")
        larger = [plan for plan in known if is_smaller(traced, plan.traced)]
        if larger:
            nearest = min(larger, key=lambda plan: plan.plain_peak)
            plan = self._decision(nearest.step.on_smaller(traced), least).follow(nearest.solution)
            if plan is not None:
                return plan
        return self._decision(price_step(traced, self.options, self.optimizer), least).plan()

    def _decision(self, step: PricedStep, least: int) -> Decision:
        plain = PlainStep.of(step)
        budget = max(budget_bytes(self.options, step, plain), least)
        return Decision(step=step, plain=plain, budget=budget, options=self.options)

    def _trace(self, function: Any, largest: Sequence[tf.TensorSpec] | None = None) -> TracedGraph:
        self.options.report("rewriting the graph")
        captured = capture(function, largest)
        self.options.report("reading the graph")
        return trace(captured)

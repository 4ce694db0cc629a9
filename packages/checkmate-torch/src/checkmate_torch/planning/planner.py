"""Plan a captured model: trace the joint graph, price it, solve, emit forward and backward code.

    gm ↦ captured ↦ joint graph ↦ priced step ↦ solution ↦ schedule of kernels ↦ forward and backward graph

AOTAutograd traces the joint graph, then calls our function that splits it, which makes the plan. Graphs
without a backward pass are not planned.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from torch.fx import GraphModule

from checkmate_torch.capture.dynamo_capture import Stop
from checkmate_torch.capture.recurrent_ops import with_recurrent_ops
from checkmate_torch.capture.target_kernels import with_kernels_of_target
from checkmate_torch.planning.dividing import decide_in_pieces
from checkmate_torch.planning.fusing import Fusing, fused_or_not
from checkmate_torch.planning.options import Options
from checkmate_torch.planning.step_plan import StepPlan
from checkmate_torch.planning.steps.stages import Captured, PricedStep, Step
from checkmate_torch.private import Halves, Joint, compile_joint
from checkmate_torch.running.fusing import fused

__all__ = ["Planner", "Tracer"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True, eq=False)
class Planner:
    """A Dynamo backend that plans each graph it gets.

    Attributes:
        step: the kind of step, with the settings.
        plans: where each plan is appended.
    """

    step: Step
    plans: list[StepPlan] = field(default_factory=list, repr=False)

    @property
    def options(self) -> Options:
        """How to plan."""
        return self.step.options

    def __call__(self, gm: GraphModule, example_inputs: Sequence[object]) -> Callable[..., object]:
        """Compile a graph that Dynamo captured."""
        gm = with_kernels_of_target(with_recurrent_ops(gm))
        with self.options.planning("tracing forward and backward pass"):
            captured = self.step.capture(gm, example_inputs)
            compiled = partial(self._compiled, gm, captured)
            fuses = self.options.lowering == "inductor" and self.step.given is None
            return fused_or_not(gm, self.options, compiled) if fuses else compiled(None)

    def _compiled(self, gm: GraphModule, captured: Captured, fusing: Fusing | None) -> Callable[..., object]:
        split = partial(self._split, captured=captured, fusing=fusing)
        return compile_joint(gm, captured.inputs, split)

    def _split(self, joint: Joint, *, captured: Captured, fusing: Fusing | None) -> Halves:
        self.step.prepare(joint, captured)
        return self._planned(self.step.price(joint, captured, fusing), fusing)

    def _planned(self, step: PricedStep, fusing: Fusing | None) -> Halves:
        """Decide a priced step, fuse its ops if asked for, emit its code, and record the plan."""
        if fusing is None:
            step, solution = decide_in_pieces(self.step, step)
        else:
            solution = self.step.decide(step)
        schedule, fusion = step.schedule(solution), None
        if fusing is not None:
            problem = solution.problem
            traced = replace(step.traced, graph=problem.graph)
            fusion = fused(traced, schedule, problem.budget, fusing.measuring)
            schedule, solution = fusion.schedule, fusion.solution(solution)
        halves = self.step.emit(step, solution, schedule, fusion)
        self.plans.append(
            StepPlan(
                traced=step.traced,
                solution=solution,
                account=step.account,
                fusion=fusion,
                plain_peak=step.plain_peak,
                loss_guess=step.traced.loss_bytes if step.captured.loss is None else 0,
                decision=step.decision,
                divided=step.divided,
                capturable=step.capturable,
                in_graph=step.in_graph,
            )
        )
        shapes = ", ".join(str(tuple(x.shape)) for x in step.holdings.batch)
        text = repr(solution)  # handlers may keep the record: it must not hold the plan
        _log.info("plan %d, for %s: %s", len(self.plans), shapes, text)
        return halves


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tracer(Planner):
    """A Dynamo backend that stops with the :class:`PricedStep` of the first graph; nothing is decided."""

    def _planned(self, step: PricedStep, _: Fusing | None) -> Halves:
        raise Stop(step)

"""Execution: a traced model and a schedule of any origin become a module that follows the schedule.

:func:`bind` is what :func:`compile` does once it has decided: both make a :class:`CompiledModule`, whose
planner emits a schedule as code.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, overload

from torch import Tensor, nn

from checkmate import Schedule, UnsupportedScheduleError, simulate
from checkmate.analysis import late_reads
from checkmate.framework import ProgramError
from checkmate.plugins import StepReport
from checkmate_torch.api.compile import CompiledModule
from checkmate_torch.api.compile_step import CompiledStep
from checkmate_torch.api.trace import TracedModel, WithLoss, made_by, trace
from checkmate_torch.api.trace_step import TracedTraining
from checkmate_torch.capture.fake_twins import arguments_of
from checkmate_torch.costs.meter import memory_meter
from checkmate_torch.optimizer.separable import refuse_memoryless
from checkmate_torch.optimizer.whole_step import WholeStep
from checkmate_torch.planning.step_plan import Given
from checkmate_torch.private import tree_leaves
from checkmate_torch.running.graph_writer import Watch
from checkmate_torch.tracing.traced_graph import TracedGraph

__all__ = ["Executor", "bind"]


@overload
def bind(traced: TracedModel, schedule: Schedule) -> CompiledModule: ...
@overload
def bind(traced: TracedTraining, schedule: Schedule) -> CompiledStep: ...
def bind(traced: TracedModel | TracedTraining, schedule: Schedule) -> CompiledModule | CompiledStep:
    """Make a module, or a whole step, that trains by a given schedule, from a file or from any solver.

    The module is called as the traced model is, and returns the loss if a loss was traced; the backward pass
    of the result follows the schedule too. A whole step is called as that of :func:`compile_step`. The model
    is captured again at the first call, and must then be as it was traced.

    Args:
        traced: from :func:`trace`, of a model with real parameters; or from :func:`trace_step`.
        schedule: of ``traced.graph``.

    Raises:
        InvalidScheduleError: if the simulator rejects the schedule.
        UnsupportedScheduleError: if it changes the order of ops that must keep it, such as random ones; if an
            op that is recomputed in vain reads a parameter after its update.
        UnsupportedModelError: if the model has no memory, because it is on the device ``meta`` or fake; at
            the first call, if the model or its inputs are not as they were traced.

    >>> import torch, checkmate
    >>> model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> traced = trace(model, torch.ones(4, 8), loss=lambda y: y.square().mean(), cost_model="flops")
    >>> schedule = checkmate.solve(traced.graph, "100%").schedule
    >>> step = bind(traced, schedule)
    >>> step(torch.ones(4, 8)).backward()
    """
    return Executor().bind(traced, schedule)


class Executor:
    """The executor ``torch``: runs what :func:`trace` returns, and programs for ``checkmate run --torch``."""

    @overload
    def bind(
        self, traced: TracedModel, schedule: Schedule, *, watch: Watch | None = None
    ) -> CompiledModule: ...
    @overload
    def bind(
        self, traced: TracedTraining, schedule: Schedule, *, watch: Watch | None = None
    ) -> CompiledStep: ...
    def bind(
        self, traced: TracedModel | TracedTraining, schedule: Schedule, *, watch: Watch | None = None
    ) -> CompiledModule | CompiledStep:
        """As :func:`bind`.

        Args:
            traced: a model or a step, with real parameters.
            schedule: of its graph.
            watch: called with each op right before it runs, and with the number of ops at the end.
        """
        simulate(traced.graph, schedule)
        given = Given(graph=traced.graph, schedule=schedule, watch=watch)
        if isinstance(traced, TracedTraining):
            _refuse_late_reads(traced.step, schedule)
            return traced.compiled(given)
        _refuse_other_order(traced.traced, schedule)
        model = traced.model
        refuse_memoryless(model)
        whole = model if traced.loss is None else WithLoss(model, traced.loss)
        return CompiledModule(whole, traced.options, given)

    def prepare(
        self, program: nn.Module | Callable[[], Sequence[object]], /, **options: Any
    ) -> RunnableModel:
        """Trace the model that a factory makes, with real parameters.

        Args:
            program: a function without arguments that returns ``(model, example_inputs)`` or
                ``(model, example_inputs, loss)``; without a loss, the model must return it.
            options: as in :func:`trace`; but workspaces are measured by default.
        """
        options.setdefault("workspaces", True)
        if isinstance(program, nn.Module):
            raise ProgramError("a model alone can't be run: give a factory of (model, example_inputs)")
        model, example_inputs, loss = made_by(program, program())
        return RunnableModel(traced=trace(model, example_inputs, loss=loss, **options), inputs=example_inputs)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunnableModel:
    """A traced model with its inputs, as ``checkmate run`` needs it.

    Attributes:
        traced: the model.
        inputs: of every step.
    """

    traced: TracedModel
    inputs: object

    def step(self, bound: CompiledModule) -> StepReport:
        """One forward and backward pass; the gradients are dropped.

        Before the first one, a pass that is not measured captures the model.

        Raises:
            ProgramError: if the model returns no loss.
        """
        args, kwargs = arguments_of(self.inputs)
        if not bound.plans:
            self._pass(bound, args, kwargs)
        start_s = time.perf_counter()
        with memory_meter(self.traced.model, tree_leaves((args, kwargs))) as meter:
            loss = self._pass(bound, args, kwargs)
        return StepReport(loss=loss, peak=meter.peak, seconds=time.perf_counter() - start_s)

    def _pass(self, bound: CompiledModule, args: tuple[object, ...], kwargs: dict[str, object]) -> float:
        """The loss."""
        loss = bound(*args, **kwargs)
        if not (isinstance(loss, Tensor) and loss.dim() == 0):
            raise ProgramError(
                "the model returns no scalar loss: let the factory return (model, example_inputs, loss)"
            )
        loss.backward()  # type: ignore[no-untyped-call]
        bound.zero_grad(set_to_none=True)
        return float(loss.detach())


def _refuse_late_reads(step: WholeStep, schedule: Schedule) -> None:
    """Raise if an op, which can only be one recomputed in vain, reads a parameter after its update."""
    graph, sequence = step.traced.graph, schedule.sequence.tolist()
    for k, u in late_reads(graph, sequence, step.writes):
        raise UnsupportedScheduleError(
            f"{graph.op_label(sequence[k])} runs after {graph.op_label(u)}, which overwrites an input of it, "
            "and nothing reads the result: leave that run out"
        )


def _refuse_other_order(traced: TracedGraph, schedule: Schedule) -> None:
    """Raise if first runs of ops that must keep their order are out of order."""
    graph, first = traced.graph, dict[int, int]()
    for k, op in enumerate(schedule.sequence.tolist()):
        first.setdefault(op, k)
    for op, later in pairwise(v for v in traced.in_sequence if v in first):
        if first[later] < first[op]:
            raise UnsupportedScheduleError(
                f"{graph.op_label(later)} runs before {graph.op_label(op)}, but ops that draw random numbers "
                "or change something must keep their order: solve with fixed_order=True (--fixed-order)"
            )
    if traced.boundary is None:
        return
    for op in traced.before_boundary:
        if first.get(op, -1) > first[traced.boundary]:
            raise UnsupportedScheduleError(
                f"{graph.op_label(op)} runs after the loss, but reads an input that is overwritten before: "
                "solve with fixed_order=True (--fixed-order)"
            )

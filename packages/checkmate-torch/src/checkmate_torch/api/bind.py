"""Execution: a traced model and a schedule of any origin become a module that follows the schedule.

:func:`bind` is what :func:`compile` does once it has decided: both make a :class:`CompiledModule`, whose
planner emits a schedule as code.
"""

from __future__ import annotations

from itertools import pairwise
from typing import overload

from checkmate import Schedule, UnsupportedScheduleError, simulate
from checkmate.analysis import late_reads
from checkmate_torch.api.compile import CompiledModule
from checkmate_torch.api.compile_step import CompiledStep
from checkmate_torch.api.trace import TracedModel, WithLoss
from checkmate_torch.api.trace_step import TracedTraining
from checkmate_torch.optimizer.separable import refuse_memoryless
from checkmate_torch.optimizer.whole_step import StepGraph
from checkmate_torch.planning.step_plan import GivenSchedule
from checkmate_torch.running.graph_writer import Watch
from checkmate_torch.tracing.traced_graph import TracedGraph

__all__ = ["bind"]


@overload
def bind(traced: TracedModel, schedule: Schedule, *, watch: Watch | None = None) -> CompiledModule: ...
@overload
def bind(traced: TracedTraining, schedule: Schedule, *, watch: Watch | None = None) -> CompiledStep: ...
def bind(
    traced: TracedModel | TracedTraining, schedule: Schedule, *, watch: Watch | None = None
) -> CompiledModule | CompiledStep:
    """Make a module, or a whole step, that trains by a given schedule, from a file or from any solver.

    The module is called as the traced model is, and returns the loss if a loss was traced; the backward pass
    of the result follows the schedule too. A whole step is called as the result of :func:`compile_step` is.
    The model is captured again at the first call, and must then be as it was traced.

    Args:
        traced: from :func:`trace`, of a model with real parameters; or from :func:`trace_step`.
        schedule: a schedule of ``traced.graph``.
        watch: called with each op right before it runs, and with the number of ops at the end.

    Raises:
        InvalidScheduleError: if the simulator rejects the schedule.
        UnsupportedScheduleError: if it reorders ops that must keep their order, such as random ones; if an
            op whose recomputed result nothing reads takes a parameter after the parameter's update.
        UnsupportedModelError: if the model has no memory, because it is on the device ``meta`` or fake; at
            the first call, if the model or its inputs are not as they were traced.

    >>> import torch, checkmate
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> squares = lambda y: y.square().mean()
    >>> traced = checkmate.torch.trace(model, torch.ones(4, 8), loss=squares, cost_model="flops")
    >>> schedule = checkmate.solve(traced.graph, "100%").schedule
    >>> step = bind(traced, schedule)
    >>> step(torch.ones(4, 8)).backward()
    """
    simulate(traced.graph, schedule)
    given = GivenSchedule(graph=traced.graph, schedule=schedule, watch=watch)
    if isinstance(traced, TracedTraining):
        _refuse_late_reads(traced.step, schedule)
        refuse_memoryless(traced.source.model)
        return CompiledStep(traced.source, traced.options, given)
    _refuse_other_order(traced.traced, schedule)
    refuse_memoryless(traced.model)
    whole = traced.model if traced.loss is None else WithLoss(traced.model, traced.loss)
    return CompiledModule(whole, traced.options, given)


def _refuse_late_reads(step: StepGraph, schedule: Schedule) -> None:
    """Raise if an op reads a parameter after its update; only an op whose result nothing reads can do so."""
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

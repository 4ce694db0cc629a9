"""The executor ``torch``: what ``checkmate run --torch package.module:factory`` runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from checkmate import Schedule
from checkmate.framework import ProgramError
from checkmate.plugins import StepReport
from checkmate_torch.adapters.frontend import made_by
from checkmate_torch.api.bind import bind
from checkmate_torch.api.compile import CompiledModule
from checkmate_torch.api.compile_step import CompiledStep
from checkmate_torch.api.trace import TracedModel, trace
from checkmate_torch.api.trace_step import TracedTraining
from checkmate_torch.capture.fake_twins import arguments_of
from checkmate_torch.costs.meter import memory_meter
from checkmate_torch.private import tree_leaves
from checkmate_torch.running.graph_writer import Watch

__all__ = ["Executor", "RunnableModel"]


class Executor:
    """The executor ``torch``: runs what :func:`trace` returns, and programs for ``checkmate run --torch``."""

    def bind(
        self, traced: TracedModel | TracedTraining, schedule: Schedule, *, watch: Watch | None = None
    ) -> CompiledModule | CompiledStep:
        """As :func:`checkmate_torch.bind`."""
        return bind(traced, schedule, watch=watch)

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
        inputs: the inputs of every step.
    """

    traced: TracedModel
    inputs: object

    def step(self, bound: CompiledModule) -> StepReport:
        """One forward and backward pass; the gradients are dropped.

        Before the first step, an unmeasured step captures the model.

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
        """Run both passes; returns the loss."""
        loss = bound(*args, **kwargs)
        if not (isinstance(loss, Tensor) and loss.dim() == 0):
            raise ProgramError(
                "the model returns no scalar loss: let the factory return (model, example_inputs, loss)"
            )
        loss.backward()  # type: ignore[no-untyped-call]
        bound.zero_grad(set_to_none=True)
        return float(loss.detach())

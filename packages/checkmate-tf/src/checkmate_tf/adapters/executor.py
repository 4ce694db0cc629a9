"""The executor ``tf``: it binds traced steps to schedules, and runs the programs of the command line."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from checkmate import Schedule
from checkmate.framework import ProgramError
from checkmate.plugins import StepReport
from checkmate_tf.adapters.frontend import step_of
from checkmate_tf.adapters.observe import light_bytes, sees_every_buffer
from checkmate_tf.api.bind import BoundStep, TracedFunction, bind
from checkmate_tf.costs.meter import memory_meter
from checkmate_tf.ops.device import device_of_this_machine

__all__ = ["Executor", "RunnableStep"]

_log = logging.getLogger(__name__)


class Executor:
    """The executor ``tf``; it runs every valid schedule, whatever its order."""

    def bind(self, traced: TracedFunction, schedule: Schedule) -> BoundStep:
        """Bind a traced step to a schedule, as :func:`~checkmate_tf.bind` does."""
        return bind(traced, schedule)

    def prepare(self, program: Any, /, **options: Any) -> RunnableStep:
        """Trace a step, and make data for it.

        Floating-point inputs are random numbers, integers are 0 or 1, all from a fixed seed; samples among
        the arguments of a function are used. Program and options are those of :meth:`Frontend.trace`, but
        workspaces are measured by default.

        Raises:
            ProgramError: if it is not such a program, or values can't be made up for an argument.
        """
        options.setdefault("workspaces", True)
        function, arguments = step_of(program, **options)
        if not _is_measured():
            _log.warning(
                "peaks are not measured, because TensorFlow reports only its largest buffers: set "
                "TF_CPU_ALLOCATOR_USE_BFC=1 in the environment"
            )
        rng = np.random.default_rng(0)
        data = [_data(x, rng) if isinstance(x, tf.TensorSpec) else x for x in tf.nest.flatten(arguments)]
        return RunnableStep(
            traced=function.trace(*arguments), arguments=tf.nest.pack_sequence_as(arguments, data)
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunnableStep:
    """A traced step with its program's variables, and data to call it; made by :meth:`Executor.prepare`.

    Attributes:
        traced: the step.
        arguments: the data, passed at each call.
    """

    traced: TracedFunction
    arguments: tuple[Any, ...]

    def step(self, bound: BoundStep) -> StepReport:
        """Run the bound step once, and measure it. The first run also makes TensorFlow's function.

        The loss is the first scalar of floating-point type among the results. The peak is None on a CPU whose
        allocator does not report every buffer (:mod:`checkmate_tf.costs.events`): it would be too low.
        """
        variables = self.traced.variables
        with memory_meter(variables, self.arguments, device=device_of_this_machine()) as meter:
            start = time.perf_counter()
            results = tf.nest.flatten(bound(*self.arguments))
            scalars = [x for x in results if tf.is_tensor(x) and x.dtype.is_floating and x.shape.rank == 0]
            loss = float(scalars[0]) if scalars else None
            seconds = time.perf_counter() - start
        peak = meter.peak if _is_measured() else None
        return StepReport(loss=loss, peak=peak, seconds=seconds, over=light_bytes(bound.program))


def _is_measured() -> bool:
    return device_of_this_machine().startswith("GPU") or sees_every_buffer()


def _data(spec: tf.TensorSpec, rng: np.random.Generator) -> tf.Tensor:
    """A tensor of made-up values."""
    if spec.dtype == tf.string:
        raise ProgramError(f"no values can be made up for {spec}: give a tensor in its place")
    real = spec.dtype.is_floating or spec.dtype.is_complex
    numbers = rng.standard_normal(spec.shape) if real else rng.integers(0, 2, spec.shape)
    return tf.cast(tf.constant(numbers), spec.dtype)

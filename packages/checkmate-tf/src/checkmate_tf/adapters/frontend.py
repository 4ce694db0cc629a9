"""The frontend ``tf``: it traces the program that a command line names.

factory ↦ (model, loss, optimizer, input_spec, label_spec) or (function, arguments) ↦ traced step
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from checkmate.framework import ProgramError
from checkmate_tf.api.bind import TracedFunction
from checkmate_tf.api.compile import CompiledIteration
from checkmate_tf.api.function import PlannedFunction
from checkmate_tf.capture.specs import specs_of
from checkmate_tf.planning.options import Options

__all__ = ["Frontend", "ProgramError", "step_of"]


class Frontend:
    """The frontend ``tf``, behind ``checkmate trace --tf package.module:factory``."""

    def trace(
        self, program: Callable[[], tuple[Any, ...]] | tuple[Any, ...], /, **options: Any
    ) -> TracedFunction:
        """Trace a step, or the step that a factory makes.

        Args:
            program: ``(model, loss, optimizer, input_spec, label_spec)``, as for :func:`trace`; or
                ``(function, arguments)``, as for :func:`~checkmate_tf.function`, the arguments a tuple of
                specs or samples; or a function without arguments that returns one of these.
            options: as in :func:`trace`.

        Raises:
            ProgramError: if ``program`` is not one of these.
        """
        function, arguments = step_of(program, **options)
        return function.trace(*arguments)


def step_of(program: Any, /, **options: Any) -> tuple[PlannedFunction, tuple[Any, ...]]:
    """The step that a program names or makes, and its arguments; raises as :meth:`Frontend.trace`."""
    made: Any = program() if callable(program) else program
    parsed = Options.parse(**{"workspaces": None, **options})
    if isinstance(made, tuple) and len(made) == 5 and isinstance(made[0], keras.Model):
        model, loss, optimizer, input_spec, label_spec = made
        step = CompiledIteration(model, loss, optimizer, input_spec, parsed)
        return step, (specs_of("input_spec", input_spec), specs_of("label_spec", label_spec))
    if isinstance(made, tuple) and len(made) == 2 and callable(made[0]) and isinstance(made[1], tuple):
        return PlannedFunction(made[0], parsed), made[1]
    raise ProgramError(
        f"{program!r} gave {made!r}: a factory for tracing returns (model, loss, optimizer, input_spec, "
        "label_spec) or (function, (argument, ...))"
    )

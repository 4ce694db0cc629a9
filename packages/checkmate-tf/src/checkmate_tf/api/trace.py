"""Planning ahead: a training step traced and not run, except for single ops that are timed.

trace: (model, loss, optimizer, specs) ↦ graph        plan: the same and a budget ↦ plan
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

import keras

from checkmate import Budget
from checkmate.framework import AUTO, ProgramError, TracingSettings
from checkmate_tf.api.bind import TracedFunction
from checkmate_tf.api.compile import CompiledIteration, iteration
from checkmate_tf.api.function import PlannedFunction
from checkmate_tf.capture.losses import Loss
from checkmate_tf.capture.specs import specs_of
from checkmate_tf.planning.options import Options, Settings
from checkmate_tf.planning.step_plan import StepPlan
from checkmate_tf.releases import check_model

__all__ = ["Frontend", "ProgramError", "plan", "step_of", "trace"]


def trace(
    model: keras.Model,
    loss: Loss,
    optimizer: keras.optimizers.Optimizer | str,
    input_spec: Any,
    label_spec: Any,
    **settings: Unpack[TracingSettings],
) -> TracedFunction:
    """Trace one training iteration of a Keras model without running it.

    The variables of the model and of the optimizer are created if they do not exist, and not changed.

    Args:
        model: as in :func:`~checkmate_tf.compile`.
        loss: as in :func:`~checkmate_tf.compile`.
        optimizer: as in :func:`~checkmate_tf.compile`.
        input_spec: ``tf.TensorSpec`` or a sample, nested as the model's inputs are.
        label_spec: the same for the labels.
        **settings: :class:`~checkmate.framework.TracingSettings`. The default of ``workspaces`` is None here,
            and ``cost_model`` may name a device that this machine lacks.

    Raises:
        CostError: if the cost model can't price the step.
        UnsupportedModelError, UnsupportedKerasError, UnsupportedFunctionError, LossError, TypeError: as
            :func:`~checkmate_tf.compile`.

    >>> import tensorflow as tf
    >>> model = keras.Sequential([keras.Input([64]), keras.layers.Dense(256, "relu"), keras.layers.Dense(1)])
    >>> specs = tf.TensorSpec([1024, 64]), tf.TensorSpec([1024, 1])
    >>> traced = trace(model, "mse", "adam", *specs, cost_model="flops")
    >>> traced.graph.cost_unit, traced.graph.base_size > 3 * 4 * model.count_params()
    ('flop', True)
    """
    check_model(model)
    function, specs = step_of((model, loss, optimizer, input_spec, label_spec), **settings)
    return function.trace(*specs)


def plan(
    model: keras.Model,
    loss: Loss,
    optimizer: keras.optimizers.Optimizer | str,
    input_spec: Any,
    label_spec: Any,
    budget: Budget = AUTO,
    **settings: Unpack[Settings],
) -> StepPlan:
    """Plan a training iteration without running it: the plan that :func:`compile` would train with.

    Args:
        model: as in :func:`~checkmate_tf.compile`.
        loss: as in :func:`~checkmate_tf.compile`.
        optimizer: as in :func:`~checkmate_tf.compile`.
        input_spec: as in :func:`trace`.
        label_spec: as in :func:`trace`.
        budget: as in :func:`~checkmate_tf.compile`.
        **settings: :class:`~checkmate_tf.planning.options.Settings`.

    Returns:
        The plan, with ``solution``, ``graph``, ``report()``, ``explain()`` and ``save_report(path)``.

    Raises:
        BudgetError: if the budget can't be read.
        InfeasibleBudgetError: if no schedule was found; names a budget that works.
        CostError, UnsupportedModelError, UnsupportedKerasError, UnsupportedFunctionError, LossError,
            TypeError: as :func:`trace`.
    """
    options = Options.parse(budget=budget, **settings)
    made = CompiledIteration(iteration(model, loss, optimizer, input_spec), options)
    return made.plan(specs_of("input_spec", input_spec), specs_of("label_spec", label_spec))


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
            ProgramError: if it is none of these.
        """
        function, arguments = step_of(program, **options)
        return function.trace(*arguments)


def step_of(program: Any, /, **options: Any) -> tuple[PlannedFunction, tuple[Any, ...]]:
    """The step that a program names or makes, and its arguments, of which specs replace tensors.

    Args:
        program: as :meth:`Frontend.trace` takes it.
        options: as in :func:`trace`.

    Raises:
        ProgramError: if it is no such program.
    """
    made: Any = program() if callable(program) else program
    parsed = Options.parse(**{"workspaces": None, **options})
    if isinstance(made, tuple) and len(made) == 5 and isinstance(made[0], keras.Model):
        model, loss, optimizer, input_spec, label_spec = made
        step = CompiledIteration(iteration(model, loss, optimizer, input_spec), parsed)
        return step, (specs_of("input_spec", input_spec), specs_of("label_spec", label_spec))
    if isinstance(made, tuple) and len(made) == 2 and callable(made[0]) and isinstance(made[1], tuple):
        return PlannedFunction(made[0], parsed), made[1]
    raise ProgramError(
        f"{program!r} gave {made!r}: a factory for tracing returns (model, loss, optimizer, input_spec, "
        "label_spec) or (function, (argument, ...))"
    )

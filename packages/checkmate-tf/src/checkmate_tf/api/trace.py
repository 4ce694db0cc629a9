"""Trace or plan a training iteration before it runs; only single ops are run, to time them.

trace: (model, loss, optimizer, specs) ↦ graph        plan: the same and a budget ↦ plan
"""

from __future__ import annotations

from typing import Any, Unpack

import keras

from checkmate import Budget
from checkmate.framework import AUTO, TracingSettings
from checkmate_tf.api.bind import TracedFunction
from checkmate_tf.api.compile import CompiledIteration
from checkmate_tf.capture.losses import Loss
from checkmate_tf.capture.specs import specs_of
from checkmate_tf.planning.options import Options, Settings
from checkmate_tf.planning.step_plan import StepPlan

__all__ = ["plan", "trace"]


def trace(
    model: keras.Model,
    loss: Loss,
    optimizer: keras.optimizers.Optimizer | str,
    input_spec: Any,
    label_spec: Any,
    **settings: Unpack[TracingSettings],
) -> TracedFunction:
    """Trace one training iteration of a Keras model without running it.

    Variables of the model and of the optimizer are created if missing, and never changed.

    Args:
        model: as in :func:`~checkmate_tf.compile`.
        loss: as in :func:`~checkmate_tf.compile`.
        optimizer: as in :func:`~checkmate_tf.compile`.
        input_spec: ``tf.TensorSpec`` or a sample, nested as the model's inputs are.
        label_spec: the same for the labels.
        **settings: :class:`~checkmate.framework.TracingSettings`. The default of ``workspaces`` is None here,
            and ``cost_model`` may name a device that this machine lacks.

    Raises:
        CostError: if the cost model can't price the step; other errors as :func:`~checkmate_tf.compile`.

    >>> import tensorflow as tf
    >>> model = keras.Sequential([keras.Input([64]), keras.layers.Dense(256, "relu"), keras.layers.Dense(1)])
    >>> specs = tf.TensorSpec([1024, 64]), tf.TensorSpec([1024, 1])
    >>> traced = trace(model, "mse", "adam", *specs, cost_model="flops")
    >>> traced.graph.cost_unit, traced.graph.base_size > 3 * 4 * model.count_params()
    ('flop', True)
    """
    settings.setdefault("workspaces", None)
    step = CompiledIteration(model, loss, optimizer, input_spec, Options.parse(**settings))
    return step.trace(specs_of("input_spec", input_spec), specs_of("label_spec", label_spec))


def plan(
    model: keras.Model,
    loss: Loss,
    optimizer: keras.optimizers.Optimizer | str,
    input_spec: Any,
    label_spec: Any,
    budget: Budget = AUTO,
    **settings: Unpack[Settings],
) -> StepPlan:
    """Plan a training iteration without running it, as :func:`~checkmate_tf.compile` would.

    The plan has ``solution``, ``graph``, ``report()``, ``explain()`` and ``save_report(path)``.

    Args:
        model: as in :func:`~checkmate_tf.compile`.
        loss: as in :func:`~checkmate_tf.compile`.
        optimizer: as in :func:`~checkmate_tf.compile`.
        input_spec: as in :func:`trace`.
        label_spec: as in :func:`trace`.
        budget: as in :func:`~checkmate_tf.compile`.
        **settings: :class:`~checkmate_tf.planning.options.Settings`.

    Raises:
        BudgetError: if the budget can't be read.
        InfeasibleBudgetError: if no schedule was found; names a budget that works. Others as :func:`trace`.
    """
    step = CompiledIteration(model, loss, optimizer, input_spec, Options.parse(budget=budget, **settings))
    return step.plan(specs_of("input_spec", input_spec), specs_of("label_spec", label_spec))

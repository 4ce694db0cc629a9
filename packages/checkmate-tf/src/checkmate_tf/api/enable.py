"""Enable a Keras model: its own training loop then runs planned steps; only its train function is replaced.

    fit: next batch ↦ train_step ↦ logs        for each kind of batch a plan of ``model.train_step``

Keras traces one function for batches of any size; a plan needs sizes. So the next batch is taken from its
iterator first, and the step is planned for that batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, Unpack

import keras
import tensorflow as tf

from checkmate import Budget, UnsupportedModelError
from checkmate.framework import AUTO
from checkmate.report import HasPlans
from checkmate_tf.api.compile import refuse_xla
from checkmate_tf.api.function import PlannedFunction
from checkmate_tf.capture.variables import made_at_once
from checkmate_tf.planning.options import Options, Settings
from checkmate_tf.planning.step_plan import StepPlan
from checkmate_tf.releases import check_model

__all__ = ["PlannedTraining", "disable", "enable", "planned_training"]

_HOOK = "make_train_function"
"""The method that we replace on a model object, bypassing Keras' tracking, so that saving ignores it."""
_log = logging.getLogger(__name__)


def enable(model: keras.Model, budget: Budget = AUTO, **settings: Unpack[Settings]) -> PlannedTraining:
    """Let ``fit`` and ``train_on_batch`` of a compiled Keras model train within a byte budget.

    Everything that Keras does around its training step stays as it is. Compiling the model again keeps it
    enabled, with new plans. With ``run_eagerly`` Keras runs Python at each step: then no step is planned,
    and a warning is logged. A saved model does not know that it was enabled; enable it again after loading.

    Args:
        model: compiled; built or not.
        budget: bytes of everything that a training step holds at once: variables, the batch, activations,
            gradients, optimizer state, workspaces of ops; a size (``"8GiB"``), a share of the plain
            step's peak (``"60%"``, ``0.6``), or ``"auto"``, the memory that the device has left.
        **settings: :class:`~checkmate_tf.planning.options.Settings`.

    Returns:
        The plans of the model; :func:`planned_training` returns them again.

    Raises:
        BudgetError: if the budget can't be read.
        UnsupportedModelError: if the model is not compiled, is compiled by XLA, or is trained under a
            ``tf.distribute`` strategy.
        UnsupportedKerasError: if Keras does not run on TensorFlow.
        TypeError: if the model is not a Keras model, or a setting does not exist or has a wrong type.

    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)])
    >>> model.compile("adam", "mse")
    >>> training = enable(model, budget="100%", cost_model="flops")
    >>> history = model.fit(tf.ones([6, 4]), tf.ones([6, 1]), batch_size=4, verbose=0)
    >>> len(training.plans)  # for batches of 4 and of 2
    2
    """
    options = Options.parse(budget=budget, **settings)
    check_model(model)
    _check(model)
    training = PlannedTraining(model, options)
    object.__setattr__(model, _HOOK, training._make_train_function)
    _rebuild(model)
    return training


def disable(model: keras.Model) -> None:
    """Restore a model's own training.

    Args:
        model: one that is not enabled stays as it is.

    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    >>> model.compile("adam", "mse")
    >>> training = enable(model, budget="8GiB")
    >>> disable(model)
    >>> planned_training(model) is None
    True
    """
    if planned_training(model) is not None:
        object.__delattr__(model, _HOOK)
        _rebuild(model)


def planned_training(model: keras.Model) -> PlannedTraining | None:
    """The object that :func:`enable` returned for a model.

    Args:
        model: one that is not enabled gives None.
    """
    owner = getattr(vars(model).get(_HOOK), "__self__", None)
    return owner if isinstance(owner, PlannedTraining) else None


class PlannedTraining(HasPlans[StepPlan]):
    """The plans of an enabled model; made by :func:`enable`."""

    def __init__(self, model: keras.Model, options: Options) -> None:
        """Keep the settings; the step is traced when the model is first trained or planned."""
        self._model, self._options = model, options
        self._step: PlannedFunction | None = None
        self._train_function: Callable[[Iterator[Any]], Any] | None = None

    @property
    def plans(self) -> tuple[StepPlan, ...]:
        """The plans so far, one for each kind of batch; empty once the model is recompiled or disabled."""
        return self._step.plans if self._step is not None and self._is_current else ()

    def plan(self, x: Any, y: Any = None, sample_weight: Any = None) -> StepPlan:
        """The plan for a batch, made without running the step; only single ops are run.

        ``fit`` uses this plan for batches of the same shapes and dtypes. Keras converts floating-point arrays
        to its own floating-point type.

        Args:
            x: inputs; each tensor may be a ``tf.TensorSpec``, here and below.
            y: labels.
            sample_weight: weights of the examples.

        Raises:
            UnsupportedModelError: if the model runs eagerly, or is not enabled any more.
            UnsupportedFunctionError: if the step can't be planned, or a shape is not known.
            InfeasibleBudgetError: if no schedule was found; names a budget that works.
        """
        self._model.make_train_function()
        if self._step is None or not self._is_current:
            raise UnsupportedModelError(
                f"model {self._model.name!r} runs eagerly, or is not enabled any more: set "
                "model.run_eagerly = False and call checkmate.tf2.enable(model, ...)"
            )
        return self._step.plan(keras.utils.pack_x_y_sample_weight(x, y, sample_weight))

    @property
    def _is_current(self) -> bool:
        return self._train_function is not None and self._model.train_function is self._train_function

    def _make_train_function(self, force: bool = False) -> None:
        """Give the model a train function, unless it has one; Keras calls this before it trains."""
        model = self._model
        if model.train_function is not None and not force:
            return
        _check(model)
        if model.run_eagerly:
            _log.warning(
                "model %r runs eagerly, one op at a time: no plan, and no budget that holds", model.name
            )
            type(model).make_train_function(model, force=True)
            return
        self._step = PlannedFunction(
            tf.autograph.experimental.do_not_convert(lambda data: _logs(model, data)),  # as Keras does
            self._options,
            optimizer=lambda: [v.value for v in model.optimizer.variables] if model.optimizer else [],
            least=self._step.least if self._step is not None else 0,
            general=True,
        )
        self._train_function = model.train_function = _train_function(model, self._step)


def _logs(model: keras.Model, data: Any) -> Any:
    """Run a training step and return its logs; TensorFlow traces this call.

    Until it is built, an optimizer such as ``LossScaleOptimizer`` may compute something else. So one trace is
    enough only if the optimizer is built first; where we can't build it, TensorFlow traces once more.
    """
    optimizer = model.optimizer
    built = model.built and all(layer.built for layer in model.layers)
    if not _is_keras_own(model) or optimizer is None or not built:
        return model.train_step(data)
    with made_at_once():
        if not optimizer.built and model.trainable_variables:
            with tf.init_scope(), keras.name_scope(optimizer.name):
                optimizer.build(model.trainable_variables)
        return model.train_step(data)


def _is_keras_own(model: keras.Model) -> bool:
    """Whether a model trains by Keras' own ``train_step``."""
    return type(model).train_step is keras.Model.train_step


def _train_function(model: keras.Model, step: PlannedFunction) -> Callable[[Iterator[Any]], Any]:
    """The function that ``fit`` calls with an iterator over batches; it returns the last logs."""

    def train(iterator: Iterator[Any]) -> Any:
        logs, trained = None, False
        for _, data in zip(range(model.steps_per_execution), iterator, strict=False):
            data = keras.tree.map_structure(_optional, data)
            if _is_keras_own(model):  # (x, y, None), as of train_on_batch, is of the same kind as (x, y)
                data = keras.utils.pack_x_y_sample_weight(*keras.utils.unpack_x_y_sample_weight(data))
            logs, trained = step(data), True
        if not trained:
            raise StopIteration  # to Keras, the end of the data
        return logs

    return train


def _optional(leaf: Any) -> Any:
    """The leaf, or None in place of a ``tf.experimental.Optional``, as in Keras' own train function."""
    return None if isinstance(leaf, tf.experimental.Optional) else leaf


def _rebuild(model: keras.Model) -> None:
    """Drop the cached train function; rebuild it now if one existed (a callback may have called us)."""
    if model.train_function is not None:
        model.make_train_function(force=True)


def _check(model: keras.Model) -> None:
    """Raise :class:`UnsupportedModelError`, which names the way out, if a model can't be planned."""
    if not model.compiled:
        raise UnsupportedModelError(
            f"model {model.name!r} is not compiled, so it has no training step: call model.compile(...) "
            "first, then checkmate.tf2.enable(model, ...)"
        )
    if tf.distribute.has_strategy() or model.distribute_strategy is not tf.distribute.get_strategy():
        strategy = type(model.distribute_strategy).__name__
        raise UnsupportedModelError(
            f"model {model.name!r} trains under {strategy}, and a plan is for one device: build and train it "
            "outside of strategy.scope(), or leave it without a budget"
        )
    refuse_xla(model)

"""Compile one training iteration of a Keras model that stays within a byte budget.

(image, label) ↦ (prediction, loss), the optimizer applied
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

import keras
import tensorflow as tf

from checkmate import Budget, UnsupportedModelError
from checkmate.framework import AUTO
from checkmate_tf.api.function import PlannedFunction
from checkmate_tf.capture.losses import Loss, scalar_loss
from checkmate_tf.capture.specs import specs_of
from checkmate_tf.ops.device import device_of_this_machine
from checkmate_tf.planning.options import Options, Settings
from checkmate_tf.releases import check_model

__all__ = ["CompiledIteration", "compile", "iteration", "refuse_xla"]


def compile(
    model: keras.Model,
    loss: Loss,
    optimizer: keras.optimizers.Optimizer | str,
    input_spec: Any = None,
    label_spec: Any = None,
    budget: Budget = AUTO,
    **settings: Unpack[Settings],
) -> CompiledIteration:
    """Make one training iteration of a Keras model that stays within a byte budget.

    ``prediction, loss = train_iteration_fn(image, label)`` gives the same bits as these lines::

        with tf.GradientTape() as tape:
            prediction = model(image, training=True)
            loss = loss_fn(label, prediction) + sum(model.losses)
        gradients = tape.gradient(optimizer.scale_loss(loss), model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    Args:
        model: a model of Keras 3 on TensorFlow: functional, sequential or subclassed. If it is not built yet,
            it is built for ``input_spec``. A plan trains the variables that were trainable when it was made.
        loss: a Keras loss or its name; a list or dict of these for several outputs, whose losses are added;
            or any callable of (label, prediction), whose result is averaged.
        optimizer: an optimizer of Keras, or its name. With the precision policy ``mixed_float16`` it is
            wrapped in a ``LossScaleOptimizer``, unless it is one, as ``model.compile`` does.
        input_spec: ``tf.TensorSpec`` or a sample for each input of the model, nested like the inputs. If both
            specs are given, the plan is made now, so that mistakes show now; else at the first call.
        label_spec: the same for the labels, which are passed to the loss.
        budget: bytes of everything that the iteration holds at once: the model, the optimizer's state, the
            batch, activations, gradients, the workspaces of ops; a size (``"8GiB"``), a share of the plain
            iteration's peak (``"60%"``, ``0.6``), or ``"auto"``, the memory that the device has left.
        **settings: :class:`~checkmate_tf.planning.options.Settings`.

    Returns:
        The iteration, which plans again when it meets a new kind of batch.

    Raises:
        BudgetError: if the budget can't be read.
        InfeasibleBudgetError: if no schedule was found; names a budget that works.
        UnsupportedModelError: if the model is to be compiled by XLA, or is not built and there is no
            ``input_spec``.
        UnsupportedKerasError: if it is a Keras 2 model, or Keras does not run on TensorFlow.
        UnsupportedFunctionError: if a shape is not known, or a part can't be planned.
        LossError: if labels and outputs are not nested as the loss requires.
        TypeError, ValueError: if a model, loss or optimizer is of a wrong type, or a setting does not exist.

    >>> model = keras.Sequential([keras.Input([4]), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
    >>> step = compile(model, "mse", "sgd", tf.TensorSpec([16, 4]), tf.TensorSpec([16, 1]), "100%")
    >>> losses = [float(step(tf.ones([16, 4]), tf.ones([16, 1]))[1]) for _ in range(3)]
    >>> losses[0] > losses[1] > losses[2]
    True
    """
    options = Options.parse(budget=budget, **settings)
    compiled = CompiledIteration(model, loss, optimizer, input_spec, options)
    if input_spec is not None and label_spec is not None:
        compiled.plan(specs_of("input_spec", input_spec), specs_of("label_spec", label_spec))
    return compiled


class CompiledIteration(PlannedFunction):
    """A training iteration within a budget, ``(image, label) -> (prediction, loss)``.

    Attributes:
        model: the model, as it was passed.
        optimizer: the optimizer that is applied.
    """

    def __init__(
        self, model: keras.Model, loss: Loss, optimizer: Any, input_spec: Any, options: Options
    ) -> None:
        """Build the model and the optimizer's state unless they are built; raises as :func:`compile`."""
        check_model(model)
        refuse_xla(model)
        _build(model, input_spec)
        scalar, applied = scalar_loss(model, loss), _optimizer(optimizer, model)
        if not applied.built:
            applied.build(model.trainable_variables)
        step = tf.autograph.experimental.do_not_convert(iteration(model, scalar, applied))  # as Keras' own
        super().__init__(step, options, optimizer=lambda: [v.value for v in applied.variables])
        self.model, self.optimizer = model, applied


def iteration(
    model: keras.Model, loss: Callable[[Any, Any], tf.Tensor], optimizer: keras.optimizers.Optimizer
) -> Callable[[Any, Any], tuple[Any, tf.Tensor]]:
    """The function (image, label) ↦ (prediction, loss), which applies the optimizer.

    Args:
        model: built.
        loss: (label, prediction) ↦ scalar.
        optimizer: built.
    """

    def step(image: Any, label: Any) -> tuple[Any, tf.Tensor]:
        trained = model.trainable_variables
        with tf.GradientTape() as tape:
            prediction = model(image, training=True)
            value = loss(label, prediction)
            scaled = optimizer.scale_loss(value)
        gradients = tape.gradient(scaled, trained)
        optimizer.apply_gradients(zip(gradients, trained, strict=True))
        return prediction, value

    return step


def refuse_xla(model: keras.Model) -> None:
    """Raise :class:`UnsupportedModelError` if the user compiled a model by XLA.

    On a GPU, Keras sets ``jit_compile`` by default, so the flag is ignored there.
    """
    if device_of_this_machine().startswith("CPU") and model.jit_compile:
        raise UnsupportedModelError(
            f"model {model.name!r} is compiled by XLA, which orders and frees in its own way: leave out "
            "jit_compile=True in model.compile(...)"
        )


def _build(model: keras.Model, input_spec: Any) -> None:
    if not model.built:
        if input_spec is None:
            raise UnsupportedModelError(
                f"{model.name!r} is not built, so its variables are unknown: give "
                "input_spec=tf.TensorSpec([batch, ...]), or call the model once"
            )
        specs = specs_of("input_spec", input_spec)
        flat = tf.nest.flatten(specs)
        tf.function(
            lambda *xs: model(tf.nest.pack_sequence_as(specs, xs), training=True), autograph=False
        ).get_concrete_function(*flat)
    if not model.trainable_variables:
        raise UnsupportedModelError(f"{model.name!r} has no trainable variables: there is nothing to train")


def _optimizer(optimizer: Any, model: keras.Model) -> keras.optimizers.Optimizer:
    found = keras.optimizers.get(optimizer) if isinstance(optimizer, str) else optimizer
    if not isinstance(found, keras.optimizers.Optimizer):
        raise TypeError(
            f"optimizer is {optimizer!r:.80}, must be one of Keras, as keras.optimizers.Adam(), "
            "or its name, as 'adam'"
        )
    scales = isinstance(found, keras.optimizers.LossScaleOptimizer)
    if model.dtype_policy.name == "mixed_float16" and not scales:
        return keras.optimizers.LossScaleOptimizer(found, name="loss_scale_optimizer")
    return found

"""Compute the scalar loss of labels and predictions, which a training step differentiates, as Keras does.

loss = Σ losses of the outputs + Σ model.losses
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from checkmate import CheckmateError

__all__ = ["Loss", "LossError", "scalar_loss"]

Loss = Any
"""A Keras loss or its name, lists and dicts of these, or a callable (label, prediction)."""


class LossError(CheckmateError, ValueError):
    """A loss can't take these labels and predictions."""


def scalar_loss(model: keras.Model, loss: Loss) -> Callable[[Any, Any], tf.Tensor]:
    """The function (label, prediction) ↦ scalar.

    Keras losses, by object or by name, and lists and dicts of them mean the same as in ``model.compile``:
    masks are applied, losses of several outputs are added. Any other callable receives labels and predictions
    unchanged, and the mean of its result is taken. In both cases the losses that layers add, such as
    regularisers, are added, so call the function right after the model.

    Raises:
        ValueError: if Keras knows no loss of this name.
        TypeError: if ``loss`` is not of these kinds.

    >>> model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    >>> by_name, by_hand = scalar_loss(model, "mse"), scalar_loss(model, lambda y, p: (y - p) ** 2)
    >>> float(by_name(tf.zeros([3, 1]), tf.ones([3, 1]))), float(by_hand(tf.zeros([3, 1]), tf.ones([3, 1])))
    (1.0, 1.0)
    """
    if loss is None or isinstance(loss, type):
        raise TypeError(
            f"loss is {loss!r:.80}: name one, as loss='mse', make one, as keras.losses.MeanSquaredError(), "
            "or give a function of (label, prediction)"
        )
    if callable(loss) and not isinstance(loss, keras.losses.Loss) and not _is_of_keras(loss):
        of_outputs = _mean_of(loss)
    else:
        of_outputs = _of_keras(loss, getattr(model, "output_names", None))

    def whole(label: Any, prediction: Any) -> tf.Tensor:
        added = [keras.ops.sum(extra) for extra in model.losses]
        value = of_outputs(label, prediction)
        return keras.ops.sum([value, *(tf.cast(extra, value.dtype) for extra in added)]) if added else value

    return whole


def _is_of_keras(loss: Callable[..., Any]) -> bool:
    """Whether this is one of Keras' functions, such as ``keras.losses.mean_squared_error``."""
    return getattr(keras.losses, getattr(loss, "__name__", ""), None) is loss


def _mean_of(loss: Callable[[Any, Any], Any]) -> Callable[[Any, Any], tf.Tensor]:
    return lambda label, prediction: tf.reduce_mean(loss(label, prediction))


def _of_keras(loss: Loss, output_names: object) -> Callable[[Any, Any], tf.Tensor]:
    """The loss function that ``model.compile`` would make; a shell is compiled, to leave the model alone."""
    for leaf in tf.nest.flatten(loss):
        if isinstance(leaf, str):
            keras.losses.get(leaf)
        elif leaf is not None and not callable(leaf):
            raise TypeError(f"loss holds {leaf!r}: must be Keras' losses, their names, or functions")
    shell = _Shell()
    if output_names is not None:
        shell.output_names = output_names
    shell.compile(loss=loss, jit_compile=False)

    def of_outputs(label: Any, prediction: Any) -> tf.Tensor:
        try:
            return shell.compute_loss(y=label, y_pred=prediction)
        except (ValueError, KeyError, IndexError) as error:
            raise LossError(
                f"the loss can't be computed from labels {_structure(label)} and outputs "
                f"{_structure(prediction)}, which must be nested alike, and like the loss: {error}"
            ) from error

    return of_outputs


def _structure(nest: Any) -> Any:
    """A nest with shapes instead of tensors."""
    return tf.nest.map_structure(lambda x: getattr(x, "shape", x), nest)


class _Shell(keras.Model):  # type: ignore[misc]  # Keras has no types
    """A model without layers."""

    def call(self, x: Any) -> Any:
        """Change nothing."""
        return x

"""A budget as a callback of Keras' ``fit``."""

from __future__ import annotations

from typing import Any, Unpack

import keras

from checkmate import Budget as Bytes
from checkmate.framework import AUTO
from checkmate_tf.api.enable import PlannedTraining, enable, planned_training
from checkmate_tf.planning.options import Options, Settings
from checkmate_tf.releases import check_model

__all__ = ["Budget"]


class Budget(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Enable the model that is trained: ``model.fit(x, y, callbacks=[Budget("60%")])``.

    The model stays enabled after training, as by :func:`enable`, and the next ``fit`` with the same callback
    uses the same plans. :func:`disable` restores the model's own training. Budget, settings and their errors
    are those of :func:`enable`.

    Attributes:
        training: the plans of the model; None before training starts.

    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)])
    >>> model.compile("adam", "mse")
    >>> budget = Budget("100%", cost_model="flops")
    >>> history = model.fit(keras.ops.ones([6, 4]), keras.ops.ones([6, 1]), callbacks=[budget], verbose=0)
    >>> len(budget.training.plans)
    1
    """

    def __init__(self, budget: Bytes = AUTO, **settings: Unpack[Settings]) -> None:
        """Keep the settings until training starts."""
        super().__init__()
        Options.parse(budget=budget, **settings)
        self.training: PlannedTraining | None = None
        self._budget, self._settings = budget, settings

    def set_model(self, model: keras.Model) -> None:
        """Keep the model, which ``fit`` passes.

        Args:
            model: the model that is trained.

        Raises:
            UnsupportedKerasError: if it is a Keras 2 model, or Keras does not run on TensorFlow.
        """
        check_model(model)
        super().set_model(model)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Enable the model, unless it is enabled by this callback; raises as :func:`enable`.

        Args:
            logs: Keras passes it; it is not used.
        """
        if self.training is None or planned_training(self.model) is not self.training:
            self.training = enable(self.model, self._budget, **self._settings)

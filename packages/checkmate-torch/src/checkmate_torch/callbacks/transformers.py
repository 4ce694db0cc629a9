"""The ``Trainer`` of Hugging Face within a byte budget: a callback plans the training of its model."""

from __future__ import annotations

import logging
from typing import Any, Unpack

from torch import nn
from torch.optim import Optimizer
from transformers import TrainerCallback

from checkmate import Budget
from checkmate.framework import AUTO
from checkmate_torch.enabled import disable, enable
from checkmate_torch.options import TrainingSettings
from checkmate_torch.training import PlannedTraining

__all__ = ["CheckmateCallback"]

_log = logging.getLogger(__name__)


class CheckmateCallback(TrainerCallback):  # type: ignore[misc]  # skipped when types are checked
    """Enable the Trainer's model when training starts; disable it and log a report when training ends.

    The state of the Trainer's optimizer is counted.

    Args:
        budget: as in :func:`checkmate_torch.enable`.
        **settings: further settings of :func:`checkmate_torch.enable`.

    Attributes:
        training: the model's plans; None before training starts.
    """

    def __init__(self, budget: Budget = AUTO, **settings: Unpack[TrainingSettings]) -> None:
        """Keep the settings until training starts."""
        self.training: PlannedTraining | None = None
        self._budget, self._settings = budget, settings

    def on_train_begin(self, *state: Any, model: nn.Module, optimizer: Optimizer, **others: Any) -> None:
        """Enable the model."""
        settings: TrainingSettings = {"optimizer": optimizer, **self._settings}
        self.training = enable(model, self._budget, **settings)

    def on_train_end(self, *state: Any, model: nn.Module, **others: Any) -> None:
        """Disable the model, and log where the bytes of the last plan's peak are."""
        disable(model)
        if self.training is not None and self.training.plans:
            _log.info("%s", self.training.report())

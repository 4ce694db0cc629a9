"""A model that is enabled while a training loop runs: what the callbacks of all libraries share."""

from __future__ import annotations

import logging
from typing import Unpack

from torch import nn
from torch.optim import Optimizer

from checkmate import Budget
from checkmate.framework import AUTO
from checkmate_torch.api.enable import disable, enable
from checkmate_torch.planning.options import TrainingSettings
from checkmate_torch.planning.sharded.training import ShardedTraining
from checkmate_torch.planning.training import PlannedTraining

__all__ = ["Enabling"]

_log = logging.getLogger(__name__)


class Enabling:
    """Enable a model when training starts; disable it and log a report when training ends.

    Args:
        budget: as in :func:`checkmate_torch.enable`.
        **settings: further settings of :func:`checkmate_torch.enable`.

    Attributes:
        training: the model's plans; None before training starts.
    """

    def __init__(self, budget: Budget = AUTO, **settings: Unpack[TrainingSettings]) -> None:
        """Keep the settings until training starts."""
        self.training: PlannedTraining | ShardedTraining | None = None
        self._budget, self._settings = budget, settings
        self._model: nn.Module | None = None

    def start(self, model: nn.Module, optimizer: Optimizer | None) -> None:
        """Enable the model, with the state of the optimizer counted."""
        settings: TrainingSettings = {"optimizer": optimizer, **self._settings}
        self._model, self.training = model, enable(model, self._budget, **settings)

    def end(self) -> None:
        """Disable the model, and log where the bytes of the last plan's peak are."""
        if self._model is not None:
            disable(self._model)
        if self.training is not None and self.training.plans:
            _log.info("%s", self.training.report())

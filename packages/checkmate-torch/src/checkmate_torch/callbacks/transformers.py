"""The ``Trainer`` of Hugging Face within a byte budget: a callback plans the training of its model."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer
from transformers import TrainerCallback

from checkmate_torch.callbacks.enabling import Enabling

__all__ = ["CheckmateCallback"]


class CheckmateCallback(Enabling, TrainerCallback):  # type: ignore[misc]  # skipped when types are checked
    """Enable the Trainer's model when training starts; disable it and log a report when training ends.

    The state of the Trainer's optimizer is counted.

    Args:
        budget: as in :func:`checkmate_torch.enable`.
        **settings: further settings of :func:`checkmate_torch.enable`.

    Attributes:
        training: the model's plans; None before training starts.
    """

    def on_train_begin(self, *state: Any, model: nn.Module, optimizer: Optimizer, **others: Any) -> None:
        """Enable the model."""
        self.start(model, optimizer)

    def on_train_end(self, *state: Any, **others: Any) -> None:
        """Disable the model, and log where the bytes of the last plan's peak are."""
        self.end()

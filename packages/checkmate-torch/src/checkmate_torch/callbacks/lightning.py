"""The ``Trainer`` of PyTorch Lightning within a byte budget: a callback plans the training of its module."""

from __future__ import annotations

import logging
from typing import Unpack

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

from checkmate import Budget, UnsupportedModelError
from checkmate.framework import AUTO
from checkmate_torch.enabled import disable, enable
from checkmate_torch.options import TrainingSettings
from checkmate_torch.training import PlannedTraining

__all__ = ["CheckmateCallback"]

_log = logging.getLogger(__name__)


class CheckmateCallback(Callback):  # type: ignore[misc]  # skipped when types are checked
    """Enable a module when training starts; disable it and log a report when training ends.

    The state of the optimizer is counted from the start if there is one optimizer.

    Args:
        budget: as in :func:`checkmate_torch.enable`.
        module: name of the submodule that ``training_step`` calls, such as ``"net.encoder"``; default the
            LightningModule if it defines ``forward`` and no strategy wraps it, as DDP does; else its only
            child with parameters.
        **settings: further settings of :func:`checkmate_torch.enable`.

    Attributes:
        training: the module's plans; None before training starts.
    """

    def __init__(
        self, budget: Budget = AUTO, *, module: str | None = None, **settings: Unpack[TrainingSettings]
    ) -> None:
        """Keep the settings until training starts."""
        self.training: PlannedTraining | None = None
        self._budget, self._name, self._settings = budget, module, settings
        self._module: nn.Module | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Enable the module."""
        name = (
            _called(pl_module, wrapped=trainer.model is not pl_module) if self._name is None else self._name
        )
        optimizer = trainer.optimizers[0] if len(trainer.optimizers) == 1 else None
        settings: TrainingSettings = {"optimizer": optimizer, **self._settings}
        self._module = pl_module.get_submodule(name)
        self.training = enable(self._module, self._budget, **settings)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Disable the module, and log where the bytes of the last plan's peak are."""
        if self._module is not None:
            disable(self._module)
        if self.training is not None and self.training.plans:
            _log.info("%s", self.training.report())

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """End as after the last step."""
        self.on_train_end(trainer, pl_module)


def _called(pl_module: LightningModule, *, wrapped: bool) -> str:
    """The name of the submodule that ``training_step`` calls; empty for the LightningModule itself.

    A strategy that wraps the LightningModule runs ``training_step`` as its ``forward``: then plan a child.
    """
    if type(pl_module).forward is not LightningModule.forward and not wrapped:
        return ""
    children: list[str] = [name for name, child in pl_module.named_children() if [*child.parameters()]]
    if len(children) == 1:
        return children[0]
    raise UnsupportedModelError(
        f"a child of {type(pl_module).__name__} must be planned, and {len(children)} have parameters "
        f"({', '.join(children)}): name the one that training_step calls, "
        'CheckmateCallback(budget, module="...")'
    )

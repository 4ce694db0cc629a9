"""The ``Trainer`` of PyTorch Lightning within a byte budget: a callback plans the training of its module."""

from __future__ import annotations

import logging
from typing import Any, Unpack

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
            LightningModule if it defines ``forward``, else its only child with parameters.
        **settings: further settings of :func:`checkmate_torch.enable`.

    Attributes:
        training: the module's plans; None before training starts.
    """

    def __init__(
        self, budget: Budget = AUTO, *, module: str | None = None, **settings: Unpack[TrainingSettings]
    ) -> None:
        """Keep the settings until training starts."""
        self.training: PlannedTraining | None = None
        self._budget, self._module, self._settings = budget, module, settings

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Enable the module."""
        optimizer = trainer.optimizers[0] if len(trainer.optimizers) == 1 else None
        settings: TrainingSettings = {"optimizer": optimizer, **self._settings}
        self.training = enable(self._planned(pl_module), self._budget, **settings)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Warn after the first batch if the module was not called."""
        if batch_idx == 0 and self.training is not None and not self.training.plans:
            _log.warning(
                "the first training_step did not call %s, so nothing is planned. Call it as a module, "
                'self(batch), or name the submodule to plan: CheckmateCallback(budget, module="...")',
                type(self._planned(pl_module)).__name__,
            )

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Disable the module, and log where the bytes of the last plan's peak are."""
        disable(self._planned(pl_module))
        if self.training is not None and self.training.plans:
            _log.info("%s", self.training.report())

    def _planned(self, pl_module: LightningModule) -> nn.Module:
        name = _called(pl_module) if self._module is None else self._module
        module: nn.Module = pl_module.get_submodule(name)
        return module


def _called(pl_module: LightningModule) -> str:
    """The name of the submodule that ``training_step`` calls; empty for the LightningModule itself."""
    if type(pl_module).forward is not LightningModule.forward:
        return ""
    children: list[str] = [name for name, child in pl_module.named_children() if [*child.parameters()]]
    if len(children) == 1:
        return children[0]
    raise UnsupportedModelError(
        f"{type(pl_module).__name__} defines no forward and has {len(children)} children with parameters "
        f"({', '.join(children)}): name the one that training_step calls, "
        'CheckmateCallback(budget, module="...")'
    )

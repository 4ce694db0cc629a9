"""The ``Trainer`` of PyTorch Lightning within a byte budget: a callback plans the training of its module."""

from __future__ import annotations

from typing import Unpack

from lightning.pytorch import Callback, LightningModule, Trainer

from checkmate import Budget, UnsupportedModelError
from checkmate.framework import AUTO
from checkmate_torch.callbacks.enabling import Enabling
from checkmate_torch.planning.options import TrainingSettings

__all__ = ["CheckmateCallback"]


class CheckmateCallback(Enabling, Callback):  # type: ignore[misc]  # skipped when types are checked
    """Enable a module when training starts; disable it and log a report when training ends.

    The state of the optimizer is counted from the start if there is one optimizer. The attribute ``training``
    has the module's plans, and is None before training starts.

    Args:
        budget: as in :func:`checkmate_torch.enable`.
        module: name of the submodule that ``training_step`` calls; default the LightningModule itself if it
            defines ``forward`` and no strategy such as DDP wraps it, else its only child with parameters.
        **settings: further settings of :func:`checkmate_torch.enable`.
    """

    def __init__(
        self, budget: Budget = AUTO, *, module: str | None = None, **settings: Unpack[TrainingSettings]
    ) -> None:
        """Keep the settings until training starts."""
        super().__init__(budget, **settings)
        self._name = module

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Enable the module."""
        name = _called(pl_module, trainer) if self._name is None else self._name
        optimizer = trainer.optimizers[0] if len(trainer.optimizers) == 1 else None
        self.start(pl_module.get_submodule(name), optimizer)

    def on_train_end(self, *_: object) -> None:
        """Disable the module, and log where the bytes of the last plan's peak are."""
        self.end()

    on_exception = on_train_end


def _called(pl_module: LightningModule, trainer: Trainer) -> str:
    """The name of the submodule that ``training_step`` calls; empty for the LightningModule itself."""
    if trainer.model is pl_module and type(pl_module).forward is not LightningModule.forward:
        return ""  # a strategy that wraps the module runs training_step as its forward
    children: list[str] = [name for name, child in pl_module.named_children() if [*child.parameters()]]
    if len(children) == 1:
        return children[0]
    raise UnsupportedModelError(
        f"{len(children)} children of {type(pl_module).__name__} have parameters ({', '.join(children)}): "
        'name the one that training_step calls, CheckmateCallback(budget, module="...")'
    )

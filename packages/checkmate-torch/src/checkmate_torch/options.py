"""The settings of the PyTorch entry points: those of every framework, and PyTorch's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torch.optim import Optimizer

from checkmate.framework import Options as CommonOptions
from checkmate.framework import Settings, TracingSettings
from checkmate.report import Kind
from checkmate.units import parse_bytes
from checkmate_torch.account import optimizer_bytes
from checkmate_torch.distributed import GroupChoice, checked_group
from checkmate_torch.lowering import Lowering, checked_lowering

__all__ = ["ModelSettings", "Options", "Settings", "TracingModelSettings"]


class TracingModelSettings(TracingSettings, total=False):
    """Keyword settings of the entry points that trace a model: those of every framework, and these.

    Attributes:
        optimizer: its state is counted too, as it will be after the first step.
        loss_bytes: bytes, or a size, that a loss computed outside the model keeps to the end of the step,
            targets included; default twice the bytes of the model's outputs. While the loss runs, three times
            the outputs' bytes are charged besides. That covers the usual losses and is usually an
            overestimate: where outputs are large, compute the loss in the model, which is traced and exact,
            and say 0, for which nothing is charged.
    """

    optimizer: Optimizer | None
    loss_bytes: int | str | None


class ModelSettings(TracingModelSettings, Settings, total=False):
    """Keyword settings of the entry points that plan for a model: all of the above."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(CommonOptions):
    """The settings of one entry point, read and checked: those of every framework, and PyTorch's own.

    Attributes:
        optimizer_bytes: bytes of the optimizer's state after its first step, held besides the traced step.
        loss_bytes: as in :class:`TracingModelSettings`, in bytes; None = twice the outputs.
        process_group: the ranks that plan together; see :mod:`checkmate_torch.distributed`.
        lowering: ``"eager"`` or ``"inductor"``; see :mod:`checkmate_torch.lowering`.
    """

    optimizer_bytes: int = 0
    loss_bytes: int | None = None
    process_group: GroupChoice = "alone"
    lowering: Lowering = "eager"
    _spelled: ClassVar[Mapping[str, str]] = {"optimizer_bytes": "optimizer"}

    @property
    def fixed(self) -> dict[Kind, int]:
        """Bytes that the step holds besides its graph, by kind."""
        return {Kind.RESERVE: self.reserve, Kind.OPTIMIZER: self.optimizer_bytes}

    @classmethod
    def parse(
        cls,
        *,
        optimizer: Optimizer | None = None,
        loss_bytes: int | str | None = None,
        process_group: GroupChoice = "alone",
        lowering: Lowering = "eager",
        **settings: Any,
    ) -> Self:
        """Read settings as users write them, so that a mistake shows before anything is traced.

        Raises:
            BudgetError: also if the optimizer's state can't be predicted.
            TypeError: also if the process group is none.
            ValueError: if there is no such lowering.
        """
        return super(Options, cls).parse(  # explicit: a dataclass with slots is a new class
            optimizer_bytes=0 if optimizer is None else optimizer_bytes(optimizer),
            loss_bytes=None if loss_bytes is None else parse_bytes(loss_bytes),
            process_group=checked_group(process_group),
            lowering=checked_lowering(lowering),
            **settings,
        )

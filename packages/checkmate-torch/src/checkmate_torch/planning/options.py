"""The settings of the PyTorch entry points: those of every framework, and PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from torch import Tensor
from torch.optim import Optimizer

from checkmate.framework import Options as CommonOptions
from checkmate.framework import Settings, TracingSettings
from checkmate.report import Kind
from checkmate.units import parse_bytes
from checkmate_torch.capture.arguments import check_loss, check_max_plans, check_optimizer
from checkmate_torch.distributed.ranks import GroupChoice, checked_group
from checkmate_torch.memory.account import optimizer_bytes
from checkmate_torch.planning.lowering import Lowering, checked_lowering
from checkmate_torch.tracing.loss_bytes import LossBytes

__all__ = ["ModelSettings", "Options", "Settings", "TracingModelSettings", "TrainingSettings"]


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


class TrainingSettings(ModelSettings, total=False):
    """Keyword settings of the entry points that train a model; those of :class:`ModelSettings`, and these.

    Attributes:
        max_plans: the number of kinds of inputs (shapes, dtypes, modes) to plan for; default 8. Calls with
            further kinds run unplanned, and one warning says so.
        dynamic: whether sizes may change within a plan. None (the default) = the first shape has a plan of
            its own, further ones share, as with :func:`torch.compile`; True = a plan holds for all sizes up
            to those that it was made for, and larger ones get another; False = every shape has its own. A
            declared maximum (``torch._dynamo.mark_dynamic(x, 0, min=2, max=64)``) is planned for at once.
        strict: True = raise an error with the way out where the budget can't be kept, instead of a warning:
            for example at a graph break, with too many kinds of inputs, or if the budget is too small for
            the state of an optimizer that was not passed.
        process_group: the ranks that plan together where ``torch.distributed`` runs: rank 0 of the group
            times the ops, solves, and sends the answer to the others. ``"all"`` (the default) = those that
            train together, ``"alone"`` = each rank plans for itself.
        lowering: ``"eager"`` (the default): each op is a kernel of PyTorch, with the same bits as without a
            budget. ``"inductor"``: neighbouring ops are fused into kernels that Inductor compiles, and
            convolutions on a CPU take images with the channels last; equal up to rounding. The budget bounds
            both. The first step takes longer by the time to compile.
        loss: the loss, where it is computed outside the model: a function of the model's output to a scalar.
            It is traced and not run; its bytes are then known, and charged in the place of ``loss_bytes``.
    """

    max_plans: int
    dynamic: bool | None
    strict: bool
    process_group: GroupChoice
    lowering: Lowering
    loss: Callable[[Any], Tensor] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(CommonOptions):
    """The settings of one entry point, read and checked: those of every framework, and PyTorch's own.

    Attributes:
        optimizer_bytes: bytes of the optimizer's state after its first step, held besides the traced step.
        loss_bytes: as in :class:`TracingModelSettings`, in bytes, or as found by tracing; None = unknown.
        process_group: the ranks that plan together; see :mod:`checkmate_torch.distributed.ranks`.
        lowering: ``"eager"`` or ``"inductor"``; see :mod:`checkmate_torch.planning.lowering`.
        max_plans: as in :class:`TrainingSettings`, and likewise below.
        dynamic: whether sizes may change within a plan.
        strict: whether to raise where the budget can't be kept.
        loss: the loss outside the model; None = unknown.
    """

    optimizer_bytes: int = 0
    loss_bytes: int | LossBytes | None = None
    process_group: GroupChoice = "alone"
    lowering: Lowering = "eager"
    max_plans: int = 8
    dynamic: bool | None = None
    strict: bool = False
    loss: Callable[[Any], Tensor] | None = None
    _spelled: ClassVar[Mapping[str, str]] = {"optimizer_bytes": "optimizer"}

    @property
    def fixed(self) -> dict[Kind, int]:
        """Bytes that the step holds besides its graph, by kind."""
        return {Kind.RESERVE: self.reserve, Kind.OPTIMIZER: self.optimizer_bytes}

    @property
    def is_share(self) -> bool:
        """Whether the budget is a share of the plain step's peak."""
        return isinstance(self.budget, float) or (isinstance(self.budget, str) and "%" in self.budget)

    def with_state(self, size: int) -> Self:
        """The same options for an optimizer that keeps ``size`` bytes."""
        return replace(self, optimizer_bytes=size)

    @classmethod
    def parse(
        cls,
        *,
        optimizer: Optimizer | None = None,
        loss_bytes: int | str | None = None,
        process_group: GroupChoice = "alone",
        lowering: Lowering = "eager",
        max_plans: int = 8,
        loss: Callable[[Any], Tensor] | None = None,
        **settings: Any,
    ) -> Self:
        """Read settings as users write them, so that a mistake shows before anything is traced.

        Raises:
            BudgetError: also if the optimizer's state can't be predicted.
            TypeError: also if the optimizer or the process group is none.
            ValueError: if there is no such lowering, or ``max_plans`` is no positive number.
        """
        cls.refuse_unknown(settings)
        if optimizer is not None:
            check_optimizer(optimizer)
        check_loss(loss)
        check_max_plans(max_plans)
        return super(Options, cls).parse(  # explicit: a dataclass with slots is a new class
            optimizer_bytes=0 if optimizer is None else optimizer_bytes(optimizer),
            loss_bytes=None if loss_bytes is None else parse_bytes(loss_bytes),
            process_group=checked_group(process_group),
            lowering=checked_lowering(lowering),
            max_plans=max_plans,
            loss=loss,
            **settings,
        )

"""The settings of the PyTorch entry points: settings common to all frameworks, and PyTorch's own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self, TypedDict, cast, get_args

from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer

from checkmate import UnsupportedModelError
from checkmate.framework import Options as CommonOptions
from checkmate.framework import Settings, TracingSettings
from checkmate.report import Kind
from checkmate.units import parse_bytes
from checkmate_torch.capture.arguments import check_loss, check_max_plans, check_optimizer
from checkmate_torch.distributed.ranks import GroupChoice, checked_group
from checkmate_torch.optimizer.meta_step import optimizer_bytes
from checkmate_torch.tracing.loss_bytes import LossBytes

__all__ = [
    "GraphChoice",
    "Lowering",
    "ModelSettings",
    "Options",
    "PlanningStepSettings",
    "Settings",
    "Split",
    "StepSettings",
    "TracingModelSettings",
    "TracingStepSettings",
    "TrainingSettings",
    "TrainingStepSettings",
    "Warnings",
    "split_settings",
]

Lowering = Literal["eager", "inductor"]
"""How the ops of a schedule run; see :class:`TrainingSettings`."""
GraphChoice = Literal["auto"] | bool
"""Whether a step is captured as a CUDA graph; see :class:`PlanningStepSettings`."""
Split = Literal["auto", False] | Mapping[str, int]
"""Whether ops may run in pieces; see :class:`ModelSettings`."""
_log = logging.getLogger(__name__)


class TracingModelSettings(TracingSettings, total=False):
    """Keyword settings of the entry points that trace a model: settings common to all frameworks, and these.

    Attributes:
        optimizer: the optimizer whose state is counted too, as large as it will be after the first step.
        loss_bytes: bytes, or a size, that a loss computed outside the model keeps to the end of the step,
            targets included; default twice the bytes of the model's outputs. While the loss runs, three times
            the outputs' bytes are charged besides. That covers the usual losses and is usually an
            overestimate: where outputs are large, compute the loss in the model, where it is traced exactly,
            and pass 0, so that nothing is charged.
    """

    optimizer: Optimizer | None
    loss_bytes: int | str | None


class ModelSettings(TracingModelSettings, Settings, total=False):
    """Keyword settings of the entry points that plan for a model: settings for tracing and for planning.

    Attributes:
        split: whether ops may run in pieces, as the losses of a language model over a few tokens at a time.
            ``"auto"`` (the default): where the budget needs it, or where it is predicted to cost at least 2 %
            less; numbers of pieces are decided, too. Sums over pieces may then differ by rounding. False =
            never. A mapping from names of ops, as :meth:`report` shows them, to numbers of pieces: these, or
            the next ones that the shapes allow.
    """

    split: Split


class TrainingSettings(ModelSettings, total=False):
    """Keyword settings of the entry points that train a model; those of :class:`ModelSettings`, and these.

    Attributes:
        max_plans: the number of kinds of inputs (shapes, dtypes, modes) to plan for; default 8. Calls with
            further kinds run unplanned, and one warning says so.
        dynamic: whether one plan may serve several sizes. None (the default) = the first shape has its own
            plan, further shapes share one, as with :func:`torch.compile`; True = a plan serves all sizes up
            to those that it was made for, a larger size gets a new plan; False = every shape has a plan. A
            declared maximum (``torch._dynamo.mark_dynamic(x, 0, min=2, max=64)``) is planned for at once.
        strict: True = where the budget can't be kept, raise an error that says what to do, instead of a
            warning: for example at a graph break, with too many kinds of inputs, or if the budget is too
            small for the state of an optimizer that was not passed.
        process_group: the ranks that plan together where ``torch.distributed`` runs: rank 0 of the group
            times the ops, solves, and sends the answer to the others. ``"all"`` (the default) = all ranks
            that train together, ``"alone"`` = each rank plans for itself.
        lowering: ``"eager"`` (the default): each op is a kernel of PyTorch, with the same bits as without a
            budget. ``"inductor"``: neighbouring ops are fused into kernels that Inductor compiles, and
            convolutions on a CPU take images with the channels last; equal up to rounding. The budget bounds
            both. The first step takes longer by the time to compile.
        loss: the loss, if it is computed outside the model: a function from the model's output to a scalar.
            It is traced and not run; the bytes found are charged instead of ``loss_bytes``.
        read_masks: whether padding masks and positions are read before a call, as in plain PyTorch, so that
            a batch without padding needs no attention mask; default True. False = they never are, and
            attention always has a mask. See the how-to guide for models from transformers.
    """

    max_plans: int
    dynamic: bool | None
    strict: bool
    process_group: GroupChoice
    lowering: Lowering
    loss: Callable[[Any], Tensor] | None
    read_masks: bool


class StepSettings(TypedDict, total=False):
    """Keyword settings that, beside model, loss function and optimizer, say what a whole training step does.

    Attributes:
        has_aux: True = ``loss_fn`` returns ``(loss, aux)``, and so does the step. Tensors in ``aux`` come
            back detached, and are charged to the end of the step.
        max_norm: clip the gradients, all together, to this norm. No update can then start before the last
            gradient is computed, so that all gradients are held at once.
        accumulate: the number of calls that make one update, each with a micro-batch. Gradients are added up,
            as by ``loss.backward()``: divide the loss by this number for their mean. They are held between
            the calls, and charged to each call throughout, so that no update can run early.
        scaler: a ``torch.amp.GradScaler``, for float16. The step scales the loss, unscales the gradients,
            skips an update if its gradients are not finite, and calls the scaler's ``update()``. No update
            can then start before the last gradient has been checked.
    """

    has_aux: bool
    max_norm: float | None
    accumulate: int
    scaler: GradScaler | None


class TracingStepSettings(StepSettings, TracingSettings, total=False):
    """Keyword settings of the entry point that traces a whole step: what it does, and how to trace it."""


class PlanningStepSettings(StepSettings, Settings, total=False):
    """Keyword settings of the entry point that plans a whole step: what it does, and how to plan it.

    Attributes:
        split: as in :class:`ModelSettings`.
        cuda_graph: True = the step is one CUDA graph, captured inside the budget, or an error names what
            forbids it. ``"auto"`` = where nothing forbids it and launching the ops takes longer than running
            them. False (the default) = never.
    """

    split: Split
    cuda_graph: GraphChoice


class TrainingStepSettings(PlanningStepSettings, total=False):
    """Keyword settings of the entry point that trains by whole steps: all to plan a step, and these.

    Attributes:
        max_plans: as in :class:`TrainingSettings`, and likewise below.
        process_group: the step does not average gradients over the ranks that plan together.
        lowering: Inductor does not compile the optimizer's updates.
        read_masks: as in :class:`TrainingSettings`.
    """

    max_plans: int
    process_group: GroupChoice
    lowering: Lowering
    read_masks: bool


def split_settings(settings: Mapping[str, Any]) -> tuple[StepSettings, dict[str, Any]]:
    """The settings that say what a whole step does, and the others, which say how to plan it."""
    of_step = {name: settings[name] for name in StepSettings.__annotations__ if name in settings}
    others = {name: value for name, value in settings.items() if name not in of_step}
    return cast("StepSettings", of_step), others


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(CommonOptions):
    """The settings of one entry point, read and checked: those of every framework, and PyTorch's own.

    Attributes:
        optimizer_bytes: bytes of the optimizer's state after its first step, held besides the traced step.
        loss_bytes: as in :class:`TracingModelSettings`, in bytes, or as found by tracing; None = unknown.
        process_group: the ranks that plan together; entry points that run nothing say ``"alone"``.
        lowering: as in :class:`TrainingSettings`, and likewise below.
        max_plans: the number of kinds of inputs to plan for.
        dynamic: whether sizes may change within a plan.
        strict: whether to raise where the budget can't be kept.
        loss: the loss outside the model; None = unknown.
        split: as in :class:`ModelSettings`.
        read_masks: whether facts of masks are read; as in :class:`TrainingSettings`.
        cuda_graph: as in :class:`PlanningStepSettings`.
    """

    optimizer_bytes: int = 0
    loss_bytes: int | LossBytes | None = None
    process_group: GroupChoice = "all"
    lowering: Lowering = "eager"
    max_plans: int = 8
    dynamic: bool | None = None
    strict: bool = False
    loss: Callable[[Any], Tensor] | None = None
    split: Split = "auto"
    read_masks: bool = True
    cuda_graph: GraphChoice = False
    _spelled: ClassVar[Mapping[str, str]] = {"optimizer_bytes": "optimizer"}

    @property
    def fixed(self) -> dict[Kind, int]:
        """Bytes that the step holds besides its graph, by kind."""
        return {Kind.RESERVE: self.reserve, Kind.OPTIMIZER: self.optimizer_bytes}

    @property
    def is_share(self) -> bool:
        """Whether the budget is a share of the plain step's peak."""
        return isinstance(self.budget, float) or (isinstance(self.budget, str) and "%" in self.budget)

    @classmethod
    def parse(
        cls,
        *,
        optimizer: Optimizer | None = None,
        loss_bytes: int | str | None = None,
        process_group: GroupChoice = "all",
        lowering: str = "eager",
        max_plans: int = 8,
        loss: Callable[[Any], Tensor] | None = None,
        split: Split = "auto",
        cuda_graph: GraphChoice = False,
        **settings: Any,
    ) -> Self:
        """Read settings as users write them, so that a mistake shows before anything is traced.

        Raises:
            BudgetError: also if the optimizer's state can't be predicted.
            TypeError: also unless ``optimizer`` is a ``torch.optim.Optimizer``, and ``process_group`` is a
                process group, ``"all"`` or ``"alone"``.
            ValueError: if there is no such lowering, or unless ``max_plans`` is a positive integer and
                ``split`` is one of its values.
        """
        cls.refuse_unknown(settings)
        if optimizer is not None:
            check_optimizer(optimizer)
        check_loss(loss)
        check_max_plans(max_plans)
        if cuda_graph not in ("auto", True, False):
            raise ValueError(f"cuda_graph is {cuda_graph!r}, must be True, False or 'auto'")
        if lowering not in get_args(Lowering):
            raise ValueError(f"no lowering {lowering!r}: there are {list(get_args(Lowering))}")
        return super(Options, cls).parse(  # explicit: a dataclass with slots is a new class
            optimizer_bytes=0 if optimizer is None else optimizer_bytes(optimizer),
            loss_bytes=None if loss_bytes is None else parse_bytes(loss_bytes),
            process_group=checked_group(process_group),
            lowering=lowering,
            max_plans=max_plans,
            loss=loss,
            split=_checked_split(split),
            cuda_graph=cuda_graph,
            **settings,
        )


def _checked_split(split: Split) -> Split:
    if split == "auto" or split is False:
        return split
    counts: object = split
    if isinstance(counts, Mapping) and all(type(k) is int and k > 0 for k in counts.values()):
        return dict(counts)
    raise ValueError(f"split is {split!r}, must be 'auto', False, or a mapping from ops to numbers of pieces")


@dataclass(frozen=True, slots=True, kw_only=True)
class Warnings:
    """Where the budget may be exceeded: log one warning for each matter, or raise if ``strict``.

    Attributes:
        strict: whether to raise.
        logged: the matters that were warned about already.
    """

    strict: bool = False
    logged: set[str] = field(default_factory=set)

    def once(self, about: str, text: str) -> None:
        """Log a warning, unless one about the same matter was logged before.

        Raises:
            UnsupportedModelError: with the text, if strict.
        """
        if self.strict:
            raise UnsupportedModelError(text)
        if about not in self.logged:
            self.logged.add(about)
            _log.warning("%s", text)

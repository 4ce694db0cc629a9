"""The training of a sharded model under one budget for each rank: what :func:`enable` makes of such a model.

    call ↦ new kind? → rehearse, decide ↦ FSDP's hooks and own code as before; each part runs by its schedule

A kind of call is planned before it runs, so that its first step is within the budget too. A part has one
schedule for each of its graphs. Where the schedules so far fit another kind of call too, they stay.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import nn
from torch.optim import Optimizer

from checkmate import InfeasibleBudgetError, NoPlanError, UnsupportedModelError
from checkmate.report import Measured, PeakReport, peak_of
from checkmate.units import format_bytes
from checkmate_torch.capture.attention_masks import is_one_sequence, masks_nothing
from checkmate_torch.capture.dynamo_capture import TooManyPlansError, captured
from checkmate_torch.capture.fake_twins import fake_like
from checkmate_torch.memory.sharded_step import Layout
from checkmate_torch.ops.storages import storages_of, tensors_in
from checkmate_torch.optimizer.state import States, on_steps
from checkmate_torch.planning.decide import Whole
from checkmate_torch.planning.options import Options, Warnings
from checkmate_torch.planning.planner import Planner
from checkmate_torch.planning.sharded.decide import ShardedPlan, ShardedSearch, ShardedTwin
from checkmate_torch.planning.sharded.parts import own_forward, parts_of, refuse_sharding
from checkmate_torch.planning.step_plan import GivenSchedule
from checkmate_torch.planning.steps.split_step import SplitStep
from checkmate_torch.private import (
    fake_mode,
    gathered_gradients,
    is_captured,
    plain_call,
    tree_leaves,
    tree_map,
    units_of,
    unplanned,
    waits_for_reduction,
)

__all__ = ["ShardedTraining"]

_log = logging.getLogger(__name__)
_INDUCTOR = "a sharded model runs by PyTorch's own kernels: leave out lowering='inductor'"
_KINDS = (
    "more than %d kinds of inputs were met, each with a plan of its own: pad them to few shapes, or raise "
    "max_plans. Calls with other kinds of inputs run unplanned, and may exceed the budget"
)
_INFEASIBLE = "training goes on with the plans so far, and may exceed the budget: %s"
_OTHER_GRAPH = "%s runs as plain PyTorch, and this step may exceed the budget: %s"


class ShardedTraining:
    """The plans of a sharded model, one for each kind of call; made by :func:`checkmate_torch.enable`."""

    def __init__(self, model: nn.Module, options: Options) -> None:
        """Keep the settings; nothing is traced before the first call.

        Raises:
            UnsupportedModelError: if it is sharded in a way that can't be planned.
        """
        refuse_sharding(model)
        if options.lowering != "eager":
            raise UnsupportedModelError(_INDUCTOR)
        self._model = weakref.ref(model)
        self.options = options
        self.warnings = Warnings(strict=options.strict)
        self._states = States()
        self._whole = Whole()
        self._plans: list[ShardedPlan] = []
        self._kinds: set[object] = set()
        self._read: frozenset[int] = frozenset()  # arguments whose values decide what runs
        self._parts = {name: _PlannedPart(name, part, self) for name, part in parts_of(model)}
        self.is_planned = True
        on_steps(self._count_state_of)

    @property
    def plans(self) -> tuple[ShardedPlan, ...]:
        """The plans so far: one for each kind of call that was trained with."""
        return tuple(self._plans)

    def report(self, measured: Measured | None = None, *, plan: int = -1) -> PeakReport:
        """The use of every byte of this rank at the step's peak; prints as a table.

        Args:
            measured: a meter around one step; its peak is printed beside the predicted one.
            plan: which of :attr:`plans`; default the last.

        Raises:
            NoPlanError: before the first call with gradients.
            TypeError: if ``measured`` is no meter.
        """
        if not self._plans:
            raise NoPlanError("nothing planned yet: run one training step first")
        return self._plans[plan].report(peak_of(measured))

    def __repr__(self) -> str:
        """The last plan in a line."""
        if not self._plans:
            return "<ShardedTraining: nothing planned yet, the first step with gradients plans>"
        plan = self._plans[-1]
        return (
            f"<ShardedTraining: budget {format_bytes(plan.budget)} for each rank, predicted peak "
            f"{format_bytes(plan.peak)}, extra cost {plan.overhead:.1%}>"
        )

    def follow(self) -> None:
        """Let the parts of the model run by their schedules."""
        for part in self._parts.values():
            part.install()

    def release(self) -> None:
        """Restore the parts of the model."""
        for part in self._parts.values():
            part.remove()

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Run the model's forward pass; plan first if calls of this kind are new."""
        model = cast("nn.Module", self._model())
        if torch.is_grad_enabled() and not torch.compiler.is_compiling() and not is_captured():
            self.is_planned = self._prepare(model, args, kwargs)
        return plain_call(model, *args, **kwargs)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _prepare(self, model: nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
        """Plan for this kind of call if it is new; whether it is planned."""
        kind = self._kind(model, args, kwargs)
        if kind in self._kinds:
            return True
        if len(self._kinds) >= self.options.max_plans:
            self.warnings.once("kinds", _KINDS % self.options.max_plans)
            return False
        try:
            self._plan(model, args, kwargs)
        except InfeasibleBudgetError as error:
            if self.options.strict or not self._plans:
                raise
            self.warnings.once("infeasible", _INFEASIBLE % error)
        self._kinds.add(self._kind(model, args, kwargs))
        return True

    def _plan(self, model: nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        options = self.options
        mode = fake_mode()
        twin = ShardedTwin.of(model, mode, options)
        fakes, named = tree_map(lambda x: fake_like(x, mode), (args, kwargs))
        tensors = [x for x in tensors_in((args, kwargs)) if x.dim()]
        held = sum(s.nbytes() for s in storages_of([model, *tensors]).values())
        device = next((x.device for x in tensors), torch.device("cpu"))
        with mode:
            if any(p.grad is not None for p in model.parameters()):
                twin.rehearsal.hold(fakes, named, reduced=True)
            if gathered_gradients(model):
                twin.rehearsal.hold(fakes, named, reduced=False)
        search = ShardedSearch.of(twin, fakes, named, options)
        self._read |= twin.rehearsal.read
        followed = {name: part.given for name, part in self._parts.items()}
        plan = search.planned((device, held), followed, self._whole)
        self._plans.append(plan)
        given = [(part.name, GivenSchedule(graph=part.graph, schedule=part.schedule)) for part in plan.parts]
        replaced = [self._parts[name].add(each) for name, each in given]
        if any(replaced):
            self._kinds.clear()  # calls of those kinds are to be rehearsed again
        _log.info("%r", self)

    def _kind(self, model: nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        """Equal for calls that can share a plan."""
        layouts = tuple(repr(Layout.of(x)) for x in tree_leaves((args, kwargs)))
        return (
            layouts,
            self._facts(args, kwargs),
            tuple(m.training for m in model.modules()),
            tuple(p.requires_grad for p in model.parameters()),
            any(p.grad is not None for p in model.parameters()),
            bool(gathered_gradients(model)),
            tuple(waits_for_reduction(unit) for unit in units_of(model)),
            torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"),
        )

    def _facts(self, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[bool, ...]:
        """What decides whether attention needs a mask, of the masks and positions that were read."""
        leaves = tree_leaves((args, kwargs))
        rows = [leaves[k] for k in sorted(self._read)]
        return tuple(bool(fact(x)) for x in rows for fact in (masks_nothing, is_one_sequence))

    def _count_state_of(self, optimizer: Optimizer) -> None:
        """Count the state of an optimizer that has stepped parameters of the model."""
        model = self._model()
        if model is None or not self._states.note(optimizer, set(map(id, model.parameters()))):
            return
        if self._states.size > self.options.optimizer_bytes:
            self.options = replace(self.options, optimizer_bytes=self._states.size)
            self._kinds.clear()


class _PlannedPart:
    """A part of a sharded model, whose ``forward`` follows schedules; FSDP's hooks run around it."""

    def __init__(self, name: str, module: nn.Module, training: ShardedTraining) -> None:
        self.name, self._module = name, weakref.ref(module)
        self._training = weakref.ref(training)
        self.given: list[GivenSchedule] = []
        self._run: Callable[..., object] | None = None

    def install(self) -> None:
        """Replace the module's ``forward``."""
        module = self._module()
        if module is not None:
            vars(module)["forward"] = self

    def remove(self) -> None:
        """Restore the module's ``forward``."""
        module = self._module()
        if module is not None and vars(module).get("forward") is self:
            del vars(module)["forward"]

    def add(self, given: GivenSchedule) -> bool:
        """Follow a schedule too; whether it replaces another one of the same graph."""
        others = [other for other in self.given if other.differs(given.graph)]
        same = [other for other in self.given if other not in others]
        if same and same[0].schedule == given.schedule:
            return False
        self.given = [*others, given]
        self._run = None
        return bool(same)

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Run the forward pass."""
        module = cast("nn.Module", self._module())
        inside = torch.compiler.is_compiling() or is_captured()
        training = self._training()
        planned = training is not None and training.is_planned and bool(self.given)
        if inside or not torch.is_grad_enabled() or not planned:
            return own_forward(module, *args, **kwargs)
        return self._planned(module, args, kwargs)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _planned(self, module: nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        training = cast("ShardedTraining", self._training())
        if self._run is None:
            options = replace(training.options, loss_bytes=0)
            first, *others = self.given
            step = SplitStep(options=options, given=replace(first, others=tuple(others)))
            self._run = captured(
                own_forward,
                Planner(step=step),
                max_plans=options.max_plans,
                read_masks=options.read_masks,
            )
        try:
            return self._run(module, *args, **kwargs)
        except (UnsupportedModelError, TooManyPlansError) as error:
            text = _OTHER_GRAPH % (self.name, str(error).splitlines()[0])
            training.warnings.once(f"graph of {self.name}", text)
            return unplanned(own_forward, module, *args, **kwargs)

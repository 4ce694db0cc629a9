"""The training of one model under plans: which captured graph a call runs, and when plans are made again.

    call ↦ gradients held? earlier calls? ↦ captured model ↦ (new kind of inputs: plan) ↦ forward pass

A plan holds for a kind of inputs. It is made again when it turns out to be wrong: when an optimizer that was
not passed keeps state for parameters of the model, or when a step has several calls.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import GeneratorType
from typing import TYPE_CHECKING, Never, cast

import torch
from torch import nn
from torch.optim import Optimizer

from checkmate import InfeasibleBudgetError
from checkmate.report import Kind
from checkmate.units import format_bytes
from checkmate_torch.capture.dynamo_capture import NotOneGraphError, TooManyPlansError, captured_model
from checkmate_torch.distributed.wrappers import inside_of, refuse_wrappers, run_inside
from checkmate_torch.optimizer.state import on_steps
from checkmate_torch.planning.options import Options
from checkmate_torch.planning.session import Generation, Session
from checkmate_torch.planning.step_plan import GivenSchedule, StepPlan, Viewable
from checkmate_torch.private import (
    OVERLOOKS_FREEZING,
    in_place,
    is_captured,
    is_transformed,
    parameters_of,
    plain_call,
    unplanned_call,
)

__all__ = ["PlannedTraining"]

_Kind = tuple[bool, tuple[bool, ...]]
"""Of a call: whether held gradients give it its own plan; the parameters that are trained."""
_Runs = dict[_Kind, Callable[..., object]]
"""The captured graphs that calls of each kind run."""
torch.compiler.assume_constant_result(is_captured)  # type: ignore[no-untyped-call]
_labels = map("planned_{}".format, itertools.count())
"""Names under which Dynamo remembers which sizes have changed, one for each training."""
_WHY_A_BREAK = (
    "Checkmate plans this model; torch.compile around it would drop the budget. Compile it alone, or leave "
    "out fullgraph=True"
)
_NOT_CALLED = (
    "%s has stepped parameters of %s, but no call of that module was planned, so that the budget bounds "
    "nothing. Calls of its parts and of methods other than forward are not planned: enable those parts"
)
_TRANSFORMED = (
    "torch.func transforms this call of the model, which runs as plain PyTorch, and the budget does not "
    "bound it: take gradients by backward() or torch.autograd.grad"
)
_REPLACED = (
    "%s.compile() has replaced the planned calls of the module, so that the budget bounds nothing any more: "
    "lowering='inductor' compiles planned graphs"
)
_PIECES = (
    ". Until then its pieces are planned with one budget for all, and tensors of the code between them are "
    "not bounded"
)
_NOTHING = (
    ", or enable parts of the model that can be captured. Until then all of it runs as plain PyTorch, and "
    "the budget does not bound it. Leave out checkpoints by hand and reversible blocks: plans recompute"
)


class PlannedTraining(Viewable):
    """The plans of a model, and the calls that follow them; made by :func:`enable` and :func:`compile`."""

    def __init__(
        self,
        model: nn.Module,
        options: Options,
        given: GivenSchedule | None = None,
        *,
        holds_model: bool = True,
    ) -> None:
        """Keep the settings; nothing is traced before the first call.

        Args:
            model: the module, or a DDP module around it.
            options: how to plan.
            given: a schedule to follow instead of deciding.
            holds_model: False = keep only a weak reference, because the model holds this object.
        """
        self._model: Callable[[], nn.Module | None] = (lambda: model) if holds_model else weakref.ref(model)
        module = model if holds_model else cast("nn.Module", weakref.proxy(model))
        self._session = Session(options=options, given=given, module=module)
        self._in_place = not holds_model
        self._runs: _Runs = {}
        self._earlier: tuple[Generation, _Runs] | None = None  # found to count too little
        self._in_pieces = False
        self._label = next(_labels)
        on_steps(self._count_state_of)

    @property
    def options(self) -> Options:
        """How plans are made."""
        return self._session.options

    @property
    def given(self) -> GivenSchedule | None:
        """The schedule that is followed instead of deciding."""
        return self._session.given

    @property
    def plans(self) -> tuple[StepPlan, ...]:
        """The plans so far: one for each kind of inputs that was trained with."""
        if self._session.plans or self._earlier is None:
            return tuple(self._session.plans)
        return tuple(self._earlier[0].plans)

    if not TYPE_CHECKING:  # to type checkers, attributes of a model are errors

        def __getattr__(self, name: str) -> Never:
            """Say that the model has the attributes of the model."""
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}. enable changes the model in "
                "place: keep the model, and name the plans, training = checkmate.torch.enable(model, …)"
            )

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Run the model's forward pass; plan first if inputs of this kind are new.

        A call without gradients is not planned. Where Checkmate captures this call as a part of a larger
        graph, the plan is for the larger graph.
        """
        if not torch.is_grad_enabled() or (torch.compiler.is_compiling() and is_captured()):
            return plain_call(self._live_model(), *args, **kwargs)
        return self._planned(args, kwargs)

    def _live_model(self) -> nn.Module:
        model = self._model()
        if model is None:
            raise ReferenceError("the model of this training is gone")
        return model

    @torch.compiler.disable(reason=_WHY_A_BREAK)  # type: ignore[no-untyped-call,untyped-decorator]
    def _planned(self, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        model = self._live_model()
        if is_transformed():
            self._session.warnings.once("transformed", _TRANSFORMED)
            return unplanned_call(model, *args, **kwargs)
        args = [iter(tuple(x)) if isinstance(x, GeneratorType) else x for x in args]  # Dynamo reads these
        self._session.find_loss_bytes(model, args, kwargs)
        try:
            result = run_inside(model, self._captured(model), args, kwargs)
        except NotOneGraphError as error:
            if self.options.strict or self.given is not None or self._in_pieces:
                raise
            why = str(error)
        except (TooManyPlansError, InfeasibleBudgetError) as error:
            if self._gives_way(error, model):
                return self._planned(args, kwargs)
            return unplanned_call(model, *args, **kwargs)
        else:
            if self._session.plans:
                self._earlier = None
            return result
        return self._planned_in_pieces(why, args, kwargs)

    def _planned_in_pieces(self, why: str, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        """Capture the model in pieces from this call on, unless the call fails: then it was at fault.

        Raises:
            Exception: what the model's own code raises, as in plain PyTorch.
        """
        whole, self._in_pieces, self._runs = self._runs, True, {}
        try:
            result = self._planned(args, kwargs)
        except Exception:
            self._in_pieces, self._runs = False, whole
            raise
        self._session.warnings.once("pieces", why + (_PIECES if self._session.plans else _NOTHING))
        return result

    def _gives_way(self, error: TooManyPlansError | InfeasibleBudgetError, model: nn.Module) -> bool:
        """Change how calls are planned after an error; False = this call can only run unplanned.

        Raises:
            CheckmateError: the error, if there is no other way.
        """
        if isinstance(error, TooManyPlansError):
            return self._make_room(error)
        if not self.options.strict and (
            self._use_earlier_plans(error) or self._ignore_gradients(model, error)
        ):
            return True
        raise error

    def _make_room(self, error: TooManyPlansError) -> bool:
        """Drop all plans if many of them are outgrown; else warn that there can be no further ones."""
        if self._session.drop_outgrown():
            self._runs = {}
            return True
        if self.options.strict:
            raise error
        self._session.warnings.once(
            "kinds", f"{error}. Calls with other kinds of inputs run unplanned, {self._excess()}"
        )
        return False

    def _use_earlier_plans(self, error: InfeasibleBudgetError) -> bool:
        """Go back to plans that count too little, if any, because no others are within the budget."""
        if self._earlier is None:
            return False
        generation, self._runs = self._earlier
        self._earlier = None
        self._session.restore(generation)
        self._session.warnings.once(
            "infeasible",
            "training goes on with plans that leave out the optimizer's state, or other calls of the step, "
            f"and may exceed the budget by those bytes: with them no plan fits. Raise the budget. {error}",
        )
        return True

    def _ignore_gradients(self, model: nn.Module, error: InfeasibleBudgetError) -> bool:
        """Let calls that find gradients follow the plans of those that find none, if there are any."""
        if not (self._session.plans and self._session.held_gradients(parameters_of(model))):
            return False
        self._session.ignore_gradients(error)
        return True

    def _captured(self, model: nn.Module) -> Callable[..., object]:
        """The function to call: the model, captured and planned for this kind of call.

        Gradients that are held while it runs are charged; if the plans so far have no room for them, calls
        with held gradients have plans of their own.
        """
        if self._session.is_outdated():
            self._plan_again(self.options)
        held = self._session.held_gradients(parameters_of(model))
        trained = tuple(p.requires_grad for p in model.parameters()) if OVERLOOKS_FREEZING else ()
        apart = held > 0 and (
            (True, trained) in self._runs or not self._session.charge(Kind.EARLIER_GRADIENTS, held)
        )
        key = apart, trained
        if key not in self._runs:
            refuse_wrappers(inside_of(model))  # DDP around the whole model works
            options = self.options
            self._runs[key] = captured_model(
                self._session,
                max_plans=options.max_plans,
                dynamic=options.dynamic,
                in_pieces=self._in_pieces,
                read_masks=options.read_masks,
                label=self._label,
            )
        return self._runs[key]

    def _plan_again(self, options: Options) -> None:
        """Drop the captured graphs, so that the next call plans with other options or other decisions."""
        ended = self._session.restart(options)
        if ended.plans or self._earlier is None:
            self._earlier = ended, self._runs
        self._runs = {}

    def _excess(self) -> str:
        """By how much a call that is not planned may exceed the budget, in words."""
        over = max((plan.plain_bytes - plan.solution.problem.budget for plan in self.plans), default=0)
        if over <= 0:
            return "and larger ones may exceed the budget"
        return f"which may exceed the budget by {format_bytes(over)}, or more where they are larger"

    def _count_state_of(self, optimizer: Optimizer) -> None:
        """Count the state of an optimizer that has stepped parameters of the model."""
        model = self._model()
        if model is None or self.given is not None:
            return
        if self._in_place and (call := in_place(model)) is not self:
            if call is not None and not isinstance(call, PlannedTraining):
                self._session.warnings.once("replaced", _REPLACED % type(model).__name__)
            return
        if not self._session.states.note(optimizer, set(map(id, model.parameters()))):
            return
        if not self._session.plans:
            if self._in_pieces:
                return  # which was said
            names = type(optimizer).__name__, type(model).__name__
            self._session.warnings.once("calls", _NOT_CALLED % names)
            return
        if options := self._session.count_states(optimizer):
            self._plan_again(options)

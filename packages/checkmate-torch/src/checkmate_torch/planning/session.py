"""The plans of one model or compilation, and the bytes besides a graph that the next plan must count.

    optimizers, gradients, calls of a step ↦ counts ↦ (a plan has no room for them: plan again)

A session is a long-lived Dynamo backend. For each graph it makes a :class:`Planner` with the current counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from torch import Tensor, nn
from torch.fx import GraphModule
from torch.optim import Optimizer

from checkmate import InfeasibleBudgetError
from checkmate.report import Kind
from checkmate.units import format_bytes, parse_budget
from checkmate_torch.capture.dynamo_capture import NotOneGraphError
from checkmate_torch.ops.sizes import (
    Sizes,
    are_larger,
    are_within,
    covers,
    planned_sizes,
    planning_for,
    planning_for_present,
    shown_inputs,
)
from checkmate_torch.optimizer.state import States, calls_the_model
from checkmate_torch.planning.decide import Whole
from checkmate_torch.planning.nested_calls.calls import NestedCalls, n_outstanding
from checkmate_torch.planning.nested_calls.joint_budget import decide_together
from checkmate_torch.planning.options import Options, Warnings
from checkmate_torch.planning.planner import Planner
from checkmate_torch.planning.step_plan import GivenSchedule, StepPlan
from checkmate_torch.planning.steps.split_step import SplitStep
from checkmate_torch.planning.trace_loss import trace_loss

__all__ = ["Generation", "Session"]

_log = logging.getLogger(__name__)


class Generation(NamedTuple):
    """The plans between two restarts of a session, their options, and how many of them later plans cover."""

    options: Options
    plans: list[StepPlan]
    n_outgrown: int


@dataclass(slots=True, weakref_slot=True, kw_only=True, eq=False)
class Session:
    """Plans that share one budget, and the bytes that the next plans must count.

    Attributes:
        options: how to plan from now on.
        module: the model; None = it is unknown.
        given: a schedule to follow instead of deciding.
        plans: one for each traced graph with a backward pass, in the order of tracing.
        sizes: the sizes of inputs that plans were made for; where sizes may change, later plans cover them.
        n_outgrown: the number of plans that a later plan covers.
        sizes_before: ``sizes`` when the plans were last dropped because ``max_plans`` was reached.
        states: the bytes of optimizers' states so far.
        gradient_bytes: bytes of gradients that are held while the graphs run, if the model is unknown.
        ignores_gradients: whether held gradients are not counted, because no plan has room for them.
        whole: what a budget may be a share of.
        warnings: about what exceeds the budget.
        calls: the planned calls of each step.
    """

    options: Options
    module: nn.Module | None = field(default=None, repr=False)
    given: GivenSchedule | None = None
    plans: list[StepPlan] = field(default_factory=list, repr=False)
    sizes: list[Sizes] = field(default_factory=list, repr=False)
    n_outgrown: int = 0
    sizes_before: Sequence[Sizes] = ()
    states: States = field(default_factory=States, repr=False)
    gradient_bytes: int = 0
    ignores_gradients: bool = False
    whole: Whole = field(default_factory=Whole, repr=False)
    warnings: Warnings = field(init=False, repr=False)
    calls: NestedCalls = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Share the warnings with the calls."""
        self.warnings = Warnings(strict=self.options.strict)
        self.calls = NestedCalls(self.warnings, optimizer_bytes=self.options.optimizer_bytes)

    def __call__(self, gm: GraphModule, example_inputs: Sequence[object]) -> Callable[..., object]:
        """Plan and compile a graph that Dynamo captured."""
        step = SplitStep(
            options=self.options,
            given=self.given,
            module=self.module,
            calls=self.calls,
            gradient_bytes=self.gradient_bytes,
            whole=self.whole,
        )
        shown = shown_inputs(gm)
        planner = Planner(step=step, plans=self.plans)
        with planning_for(shown, self.sizes, ahead=n_outstanding() > 0 < self.n_outgrown):
            try:
                call = planner(gm, example_inputs)
                self._note_sizes(shown)
            except InfeasibleBudgetError:
                if not are_larger(shown):
                    raise
                with planning_for_present():
                    call = planner(gm, example_inputs)
                    self._note_sizes(shown)
        return call

    def _note_sizes(self, inputs: Sequence[object]) -> None:
        """Note the sizes of a planned graph, which replace smaller ones that it covers."""
        sizes = planned_sizes(inputs)
        others = [known for known in self.sizes if known != sizes and are_within(known, sizes)]
        outgrown = [known for known in others if covers(inputs, known)]
        self.n_outgrown += len(outgrown)
        self.sizes[:] = [known for known in self.sizes if known not in (sizes, *outgrown)] + [sizes]

    def find_loss_bytes(self, model: nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Trace ``loss=`` once, to know its bytes for all kinds of inputs; else the rule of thumb is used."""
        options = self.options
        if options.loss is None or options.loss_bytes is not None:
            return
        try:
            found = trace_loss(model, options.loss, args, kwargs, options)
        except NotOneGraphError as error:
            _log.info("%s", error)
            found = None
        if found is None:
            _log.warning("the loss could not be traced: the rule of thumb takes its place")
            self.options = replace(options, loss=None)
        else:
            self.options = replace(options, loss_bytes=found)

    def restart(self, options: Options) -> Generation:
        """Start a new generation of plans, with these options; returns the generation that ends."""
        ended = Generation(self.options, self.plans, self.n_outgrown)
        self.calls.generation += 1
        if options.optimizer_bytes > self.calls.optimizer_bytes:
            self.calls.optimizer_bytes = options.optimizer_bytes
            self.calls.reopen(*self.calls.known)
        self.options, self.plans, self.n_outgrown = options, [], 0
        return ended

    def restore(self, generation: Generation) -> None:
        """Go back to a generation of plans."""
        self.options, self.plans, self.n_outgrown = generation

    def drop_outgrown(self) -> bool:
        """Restart if sizes have grown and later plans cover at least half of all plans; else return False."""
        before = self.sizes_before
        grown = any(not any(are_within(sizes, known) for known in before) for sizes in self.sizes)
        if not grown or 2 * self.n_outgrown < len(self.plans):
            return False
        self.restart(self.options)
        self.sizes_before = tuple(self.sizes)
        return True

    def charge(self, kind: Kind, size: int, options: Options | None = None) -> bool:
        """Charge ``size`` bytes of a kind in all plans so far; False if one would then exceed the budget."""
        options = options or self.options
        more = max((size - plan.account.fixed.get(kind, 0) for plan in self.plans), default=0)
        whole = self.whole.size + max(0, more)  # plain PyTorch holds them too
        budget = parse_budget(options.budget, whole) if options.is_share and self.plans else None
        charged = [plan.charged(kind, size, budget) for plan in self.plans]
        plans = [plan for plan in charged if plan is not None]
        if len(plans) < len(charged):
            return False
        self.plans[:], self.options = plans, options
        self.calls.optimizer_bytes = options.optimizer_bytes
        self.whole.grown(whole)
        return True

    def count_states(self, optimizer: Optimizer) -> Options | None:
        """Charge the bytes of optimizers in the plans so far.

        Args:
            optimizer: the one whose state was noted last.

        Returns:
            the options to plan again with if the plans have no room, else None.
        """
        name, size = type(optimizer).__name__, self.states.size
        if self.given is None and calls_the_model(optimizer) and not self.options.reserve:
            self.warnings.once(
                "closure",
                f"{name} calls the model inside of its step, and what it holds meanwhile besides its state "
                "is not counted: the step may exceed the budget by that. Pass those bytes as reserve=",
            )
        more = size - self.options.optimizer_bytes
        if self.given is not None or more <= 0:
            return None
        options = replace(self.options, optimizer_bytes=size)
        if self.charge(Kind.OPTIMIZER, size, options):
            return None
        _log.info(
            "%s keeps %s that the plans do not count: the next call plans again. optimizer= counts them from "
            "the first step",
            name,
            format_bytes(more),
        )
        return options

    def held_gradients(self, parameters: Iterable[Tensor]) -> int:
        """Bytes of the gradients that parameters hold; 0 if held gradients are not counted."""
        if self.ignores_gradients:
            return 0
        return sum([x.nbytes for p in parameters if (x := p.grad) is not None])

    def ignore_gradients(self, error: InfeasibleBudgetError) -> None:
        """Count no held gradients any more, because no plan has room for them."""
        self.gradient_bytes, self.ignores_gradients = 0, True
        self.warnings.once(
            "ignored gradients",
            "while gradients of earlier backward passes are held, no plan is within the budget: training "
            f"goes on with plans that do not count them. {error}",
        )

    def is_outdated(self) -> bool:
        """Whether some plan ignores what was decided for all calls of a step together.

        First decides the calls of the last step together, if that is due. Returns True once per decision.
        """
        if (nests := self.calls.undecided()) and self.n_outgrown > 1:
            return True  # their sizes grew within a step: first let all follow the plan for the largest
        if nests:
            decide_together(self.calls, nests, self.options, self.whole)
        renewed, self.calls.renewed = self.calls.renewed, False
        return renewed

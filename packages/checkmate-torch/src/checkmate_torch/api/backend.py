"""The Dynamo backend ``checkmate``: graphs that ``torch.compile`` captures are planned within a budget."""

from __future__ import annotations

import logging
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.fx import GraphModule
from torch.optim import Optimizer

from checkmate import CheckmateError, InfeasibleBudgetError, NoPlanError, UnsupportedModelError
from checkmate.report import Kind
from checkmate.units import format_bytes
from checkmate_torch.distributed.ranks import refuse_split_graphs
from checkmate_torch.optimizer.state import States, on_steps
from checkmate_torch.planning.options import Options
from checkmate_torch.planning.planner import IGNORED_GRADIENTS, Planner
from checkmate_torch.planning.step_plan import StepPlan
from checkmate_torch.private import (
    Compilation,
    current_compilation,
    forget,
    graph_break,
    graph_breaks,
    is_chosen,
    on_recompile_limit,
    passing_dynamo,
)

__all__ = ["checkmate_backend", "last_plan"]

_log = logging.getLogger(__name__)
_MOST = 16
"""Calls of ``torch.compile`` whose plans are known, the latest ones."""
_OF_TORCH_COMPILE = ("dynamic", "loss", "max_plans")
"""Settings of :func:`compile` that are arguments of ``torch.compile``, or that a graph can't use."""
_known: OrderedDict[int, tuple[Mapping[str, Any], _Planning]] = OrderedDict()


def checkmate_backend(
    gm: GraphModule,
    example_inputs: Sequence[object],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., object]:
    """The entry point behind ``torch.compile(model, backend="checkmate", options={"budget": "8GiB"})``.

    With graph breaks, Dynamo captures a model in pieces, which share the budget, and a warning says where it
    broke. :func:`last_plan` is the latest plan.

    Args:
        gm: the graph that Dynamo captured.
        example_inputs: its inputs.
        options: the budget and settings of :func:`checkmate_torch.compile`, without ``dynamic``, ``loss`` and
            ``max_plans``.
        mode: must be None.

    Raises:
        ValueError: if there is a mode, or no budget.
        TypeError: if there is no setting of an option's name.
        InfeasibleBudgetError, UnsupportedModelError, …: as the first call of a compiled module; they reach
            the caller of the model.
    """
    try:
        shared = _planning(options, mode)
        reason = graph_break(gm)
        if reason is not None and shared.planner.options.strict:
            raise UnsupportedModelError(f"a budget for the whole step needs one graph: {reason}")
        if reason is not None:
            _log.warning("graph break, %d so far: the pieces share the budget: %s", graph_breaks(), reason)
        refuse_split_graphs()
        return shared.compiled(gm, example_inputs)
    except (CheckmateError, TypeError, ValueError) as error:
        raise passing_dynamo(error) from None


def last_plan() -> StepPlan:
    """The latest plan that the backend ``checkmate`` made in this process.

    Raises:
        NoPlanError: if it has made none.
    """
    if not _Planning.latest:
        raise NoPlanError("nothing planned yet: run one training step of the compiled model first")
    return _Planning.latest[-1]


class _Planning:
    """The graphs of one call of ``torch.compile``, which share a budget."""

    latest: Sequence[StepPlan] = ()
    """The plans that the latest one is the last of."""

    def __init__(self, planner: Planner) -> None:
        self.planner, self.ignores_gradients = planner, False
        self.compilations: set[Compilation] = set()
        self.parameters: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()
        self.states = States()
        on_steps(self.count_state_of)

    def compiled(self, gm: GraphModule, example_inputs: Sequence[object]) -> Callable[..., object]:
        """Plan a graph; the call that runs it."""
        planner = self.planner
        trained = [k for k, x in enumerate(example_inputs) if isinstance(x, nn.Parameter) and x.requires_grad]
        n_plans = len(planner.plans)
        if not self.ignores_gradients:
            planner.held = max(planner.held, _held(example_inputs[k] for k in trained))
        self.compilations.add(current_compilation())
        try:
            call = planner(gm, example_inputs)
        except InfeasibleBudgetError as error:
            if planner.options.strict or not planner.held:
                raise
            planner.held, self.ignores_gradients = 0, True
            planner.warn_once("ignored gradients", IGNORED_GRADIENTS % error)
            call = planner(gm, example_inputs)
        if len(planner.plans) == n_plans:
            return call  # there is no backward pass
        _Planning.latest = planner.plans
        self.parameters.update((id(x), x) for x in example_inputs if isinstance(x, nn.Parameter))

        def run(*args: object) -> object:
            self.before_call([args[k] for k in trained])
            return call(*args)

        return run

    def before_call(self, parameters: Sequence[object]) -> None:
        """Plan again from the next call on, if held gradients or a step's other calls are not counted."""
        planner = self.planner
        self.count_states(*self.states.note_call())
        held = 0 if self.ignores_gradients else _held(parameters)
        if held > planner.held:
            planner.held = held
            if not planner.charge(Kind.EARLIER_GRADIENTS, held):
                planner.warn_once(
                    "gradients",
                    f"gradients of {format_bytes(held)} are held, for which the plan has no room: this call "
                    "may exceed the budget by that, and the next one is planned with them",
                )
                self.plan_again()
        if planner.is_outdated():
            self.plan_again()

    def plan_again(self) -> None:
        """Drop the captured graphs, so that the next calls are planned again."""
        for compilation in self.compilations:
            forget(compilation)
        self.compilations.clear()
        self.planner.plans = []

    def count_state_of(self, optimizer: Optimizer) -> None:
        """Count the state of an optimizer that has stepped parameters of these graphs."""
        if self.states.note(optimizer, self.parameters):
            self.count_states(type(optimizer).__name__)

    def count_states(self, name: str, calls: int = 0) -> None:
        """Count what optimizers keep, the one of this name in the middle of its step too."""
        if options := self.planner.count_state(self.states, name, calls):
            self.planner.options = options
            self.plan_again()


def _held(parameters: Iterable[object]) -> int:
    """Bytes of the gradients that parameters hold."""
    return sum(p.grad.nbytes for p in parameters if isinstance(p, Tensor) and p.grad is not None)


def _planning(options: Mapping[str, Any] | None, mode: str | None) -> _Planning:
    """The planning for one call of ``torch.compile``, which passes the same options each time."""
    if mode is not None:
        raise ValueError(f"backend 'checkmate' has no modes, got {mode!r}")
    known = _known.get(id(options))
    if known is not None:
        return known[1]
    given = dict(options or {})
    if wrong := [name for name in _OF_TORCH_COMPILE if name in given]:
        raise TypeError(
            f"{wrong[0]!r} is no option of the backend: it is an argument of torch.compile, or of enable"
        )
    parsed = Options.parse(**{"process_group": "all", **given})
    if "budget" not in given:
        raise ValueError("backend 'checkmate' needs a budget: options={'budget': '8GiB'}")
    planning = _Planning(Planner(parsed))
    _known[id(options)] = options or {}, planning  # holds the options, so that the number stays theirs
    while len(_known) > _MOST:
        _known.popitem(last=False)
    return planning


class _NotCaptured:
    """Warns of what Dynamo never hands over, which runs as plain PyTorch."""

    def __init__(self) -> None:
        self.n_steps = 0
        on_steps(self.count_step)
        on_recompile_limit(self.warn_of_limit)

    def count_step(self, _: Optimizer) -> None:
        """Warn if a model is compiled for this backend and optimizers step, and there is no graph."""
        if not _known and is_chosen("checkmate"):
            self.n_steps += 1
            if self.n_steps == 2:
                _log.warning(
                    "optimizers step, and Dynamo has handed no graph to the backend 'checkmate' so far: what "
                    "it can't capture runs as plain PyTorch, and the budget does not bound it. "
                    "checkmate.torch.enable(model, budget) says why"
                )

    def warn_of_limit(self) -> None:
        """Warn of calls that are not captured any more."""
        if _known:
            _log.warning(
                "Dynamo captures some calls no more, because they would need too many graphs: those of a "
                "planned model run as plain PyTorch, and the budget does not bound them. Pad inputs to few "
                "shapes, raise torch._dynamo.config.recompile_limit, or use checkmate.torch.enable"
            )


_not_captured = _NotCaptured()

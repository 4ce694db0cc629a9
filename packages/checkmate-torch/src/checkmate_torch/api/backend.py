"""The Dynamo backend ``checkmate``: graphs that ``torch.compile`` captures are planned within a budget."""

from __future__ import annotations

import logging
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from torch import Tensor, nn
from torch.fx import GraphModule
from torch.optim import Optimizer

from checkmate import CheckmateError, InfeasibleBudgetError, NoPlanError, UnsupportedModelError
from checkmate.report import Kind
from checkmate.units import format_bytes
from checkmate_torch.distributed.wrappers import refuse_split_graphs
from checkmate_torch.optimizer.state import on_steps
from checkmate_torch.planning.options import Options
from checkmate_torch.planning.session import Session
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
"""The number of latest ``torch.compile`` calls whose plans are remembered."""
_OF_TORCH_COMPILE = ("dynamic", "loss", "max_plans")
"""Settings that this backend refuses: arguments of ``torch.compile``, or of no use for a single graph."""
_known: OrderedDict[int, tuple[Mapping[str, Any], _Compiled]] = OrderedDict()


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
        TypeError: if an option is unknown.
        InfeasibleBudgetError, UnsupportedModelError, …: where the model is called, as from the first call of
            a compiled module.
    """
    try:
        shared = _compiled(options, mode)
        reason = graph_break(gm)
        if reason is not None and shared.session.options.strict:
            raise UnsupportedModelError(f"a budget for the whole step needs one graph: {reason}")
        if reason is not None:
            _log.warning("graph break, %d so far: the pieces share the budget: %s", graph_breaks(), reason)
        refuse_split_graphs()
        return shared.graph(gm, example_inputs)
    except (CheckmateError, TypeError, ValueError) as error:
        raise passing_dynamo(error) from None


def last_plan() -> StepPlan:
    """The latest plan that the backend ``checkmate`` made in this process.

    Raises:
        NoPlanError: if it has made none.
    """
    if not _Compiled.latest:
        raise NoPlanError("nothing planned yet: run one training step of the compiled model first")
    return _Compiled.latest[-1]


class _Compiled:
    """The graphs of one call of ``torch.compile``, which share a budget."""

    latest: Sequence[StepPlan] = ()
    """The plans of the call of ``torch.compile`` that planned last; the last item is the latest plan."""

    def __init__(self, options: Options) -> None:
        self.session = Session(options=options)
        self.compilations: set[Compilation] = set()
        self.parameters: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()
        on_steps(self.count_state_of)

    def graph(self, gm: GraphModule, example_inputs: Sequence[object]) -> Callable[..., object]:
        """Plan a graph; returns the function that runs it."""
        session = self.session
        trained = [k for k, x in enumerate(example_inputs) if isinstance(x, nn.Parameter) and x.requires_grad]
        n_plans = len(session.plans)
        held = session.held_gradients(cast("Tensor", example_inputs[k]) for k in trained)
        session.gradient_bytes = max(session.gradient_bytes, held)
        self.compilations.add(current_compilation())
        try:
            call = session(gm, example_inputs)
        except InfeasibleBudgetError as error:
            if session.options.strict or not session.gradient_bytes:
                raise
            session.ignore_gradients(error)
            call = session(gm, example_inputs)
        if len(session.plans) == n_plans:
            return call  # there is no backward pass
        _Compiled.latest = session.plans
        self.parameters.update((id(x), x) for x in example_inputs if isinstance(x, nn.Parameter))

        def run(*args: object) -> object:
            self.before_call(cast("Sequence[Tensor]", [args[k] for k in trained]))
            return call(*args)

        return run

    def before_call(self, parameters: Sequence[Tensor]) -> None:
        """Plan again from the next call on, if held gradients or a step's other calls are not counted."""
        session = self.session
        held = session.held_gradients(parameters)
        if held > session.gradient_bytes:
            session.gradient_bytes = held
            if not session.charge(Kind.EARLIER_GRADIENTS, held):
                session.warnings.once(
                    "gradients",
                    f"gradients of {format_bytes(held)} are held, for which the plan has no room: this call "
                    "may exceed the budget by that, and the next one is planned with them",
                )
                self.plan_again(session.options)
        if session.is_outdated():
            self.plan_again(session.options)

    def plan_again(self, options: Options) -> None:
        """Drop the captured graphs, so that the next calls are planned again."""
        for compilation in self.compilations:
            forget(compilation)
        self.compilations.clear()
        self.session.restart(options)

    def count_state_of(self, optimizer: Optimizer) -> None:
        """Count the state of an optimizer that has stepped parameters of these graphs."""
        holds_any = self.session.states.note(optimizer, self.parameters)
        if holds_any and (options := self.session.count_states(optimizer)):
            self.plan_again(options)


def _compiled(options: Mapping[str, Any] | None, mode: str | None) -> _Compiled:
    """The graphs of one call of ``torch.compile``, found by the options object that it passes each time."""
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
    parsed = Options.parse(**given)
    if "budget" not in given:
        raise ValueError("backend 'checkmate' needs a budget: options={'budget': '8GiB'}")
    compiled = _Compiled(parsed)
    _known[id(options)] = options or {}, compiled  # keeps the options alive: their id is not reused
    while len(_known) > _MOST:
        _known.popitem(last=False)
    return compiled


class _NotCaptured:
    """Warns of code that Dynamo does not capture, which runs as plain PyTorch."""

    def __init__(self) -> None:
        self.n_steps = 0
        on_steps(self.count_step)
        on_recompile_limit(self.warn_of_limit)

    def count_step(self, _: Optimizer) -> None:
        """Warn at the second optimizer step if a model is compiled for this backend and no graph came."""
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

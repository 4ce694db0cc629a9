"""A step that the user's own loop runs: a forward and a backward graph, with the caller's loss in between."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from torch import nn
from torch.fx import GraphModule

from checkmate import InfeasibleBudgetError, Problem, Schedule, Solution, keep_all_peak, simulate
from checkmate.framework import schedule_of
from checkmate.report import Kind
from checkmate.units import format_bytes
from checkmate_torch.distributed.wrappers import bucket_bytes
from checkmate_torch.memory.account import ResidentBytes, named
from checkmate_torch.memory.plain_step import plain_step_of_graph
from checkmate_torch.ops.capturable import moves_to_host
from checkmate_torch.ops.sizes import are_larger, planning_for_present, shown_inputs
from checkmate_torch.planning.decide import LEAST_S, WORTH_A_HINT, budget_bytes, decide_step, least_memory
from checkmate_torch.planning.fusing import Fusing
from checkmate_torch.planning.nested_calls.calls import (
    NestedCalls,
    PlannedCall,
    n_outstanding,
)
from checkmate_torch.planning.nested_calls.changing_sizes import ChangingSizes
from checkmate_torch.planning.retain_graph import decide_for_repeats
from checkmate_torch.planning.steps.stages import Captured, PricedStep, Step
from checkmate_torch.private import Halves, Joint, below_autograd, graph_break, inputs_of_modules
from checkmate_torch.running.absent_gradients import without_absent
from checkmate_torch.running.emit import emit
from checkmate_torch.running.fusing import Fusion
from checkmate_torch.tracing.joint_graph import trace_joint
from checkmate_torch.tracing.loss_bytes import returns_loss
from checkmate_torch.tracing.traced_graph import TracedGraph

__all__ = ["SplitStep"]

_RETAINED = (
    "no schedule stays within %s where backward passes keep the graph: the step may exceed that; the least "
    "budget known to work is %d bytes. Add the losses up and run one backward pass"
)
_RETURNED = (
    "The model returns %s besides the loss, which are held and get a gradient: let its forward return the "
    "loss alone. Or raise the budget, or make the batch smaller."
)
_OUTSIDE = (
    "The model returns %s, which are held and get a gradient: compute the loss in its forward and return it "
    "alone, or use compile_step, so that these ops may run in pieces. Or raise the budget, or make the batch "
    "smaller."
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SplitStep(Step):
    """A step that is split into a forward and a backward graph.

    Attributes:
        module: its parameters, buffers and gradients are resident too where the graph does not take them;
            None = the model is unknown.
        calls: the planned calls of its session.
        gradient_bytes: bytes of gradients that are held while the graphs run, if the model is unknown.
        asks_host: whether calls are looked for that put tensors on the CPU, as before a capture.
    """

    module: nn.Module | None = None
    calls: NestedCalls = field(default_factory=NestedCalls)
    gradient_bytes: int = 0
    asks_host: bool = False

    def capture(self, gm: GraphModule, inputs: Sequence[object]) -> Captured:
        """Find out what is resident, and what the caller's loss needs."""
        loss, continues = self.options.loss_bytes, graph_break(gm) is not None
        if continues or (loss is None and returns_loss(gm)):
            loss = 0
        plain = plain_now = plain_step_of_graph(gm, inputs, loss=loss) if self.given is None else None
        if self.options.is_share and are_larger(shown_inputs(gm)):
            with planning_for_present():
                plain_now = plain_step_of_graph(gm, inputs, loss=loss)
        return Captured(
            inputs=inputs,
            holdings=self._holdings(inputs),
            plain=plain,
            plain_now=plain_now,
            loss=loss,
            continues=continues,
            buffers=_buffers(gm, inputs) if continues else (),
            is_inside=n_outstanding() > 0,
            on_host=moves_to_host(gm) if self.asks_host else (),
        )

    def _holdings(self, inputs: Sequence[object]) -> ResidentBytes:
        besides = {Kind.BUCKETS: bucket_bytes()}
        if self.module is None:
            besides[Kind.EARLIER_GRADIENTS] = self.gradient_bytes
        holdings = ResidentBytes.of(self.module, inputs, self.options.fixed | besides)
        if self.calls.backward_repeats:  # gradients of the first backward pass, held in the next
            more = sum(holdings.trained.values()) - holdings.fixed.get(Kind.EARLIER_GRADIENTS, 0)
            holdings = holdings.with_further(Kind.EARLIER_GRADIENTS, max(0, more))
        return holdings

    def price(self, joint: Joint, captured: Captured, fusing: Fusing | None) -> PricedStep:
        """Trace the joint graph with the loss as an op at the boundary."""
        traced, bare = self.traced_and_priced(partial(self.trace, joint, captured), fusing)
        traced, holdings = self.with_given_costs(traced), captured.holdings
        peaks = [
            None if plain is None else plain.peak_beside(bare.graph, bare.nodes, holdings.size)
            for plain in (captured.plain, captured.plain_now)
        ]
        sizes = ChangingSizes.of(traced)
        known = self.calls.find(traced.graph)
        decision = None if known is None else known.decision_for(traced.graph, traced.boundary, sizes)
        account = holdings.account(traced)
        if decision is not None:
            account = replace(account, fixed={**account.fixed, Kind.OTHER_CALLS: decision.besides})
        return PricedStep(
            captured=captured,
            traced=traced,
            holdings=holdings,
            account=account,
            plain_peak=peaks[0] if decision is None else decision.plain_peak,
            peak_now=peaks[1],
            sizes=sizes,
            known=known,
            decision=decision,
            is_provisional=decision is None and self._is_provisional(captured, known),
        )

    def prepare(self, joint: Joint, captured: Captured) -> None:
        """Leave it: the loss is the caller's."""

    def trace(self, joint: Joint, captured: Captured) -> TracedGraph:
        """Read the joint graph, with the loss at the boundary."""
        traced = trace_joint(
            joint,
            reserve=captured.holdings.size,
            loss=captured.loss,
            name="" if self.module is None else self.module.__class__.__name__,  # of a proxy, too
            overwritten=captured.buffers,
        )
        return replace(traced, graph=named(traced, captured.inputs, self.module))

    def may_be_divided(self, step: PricedStep) -> bool:
        """Whether the step is this one call, all of which is known."""
        is_one = step.decision is None and not step.is_provisional and not self.calls.backward_repeats
        return self.given is None and is_one

    def decide(self, step: PricedStep, *, throw: bool = True) -> Solution:
        """The best schedule within the budget, as far as the calls of the step are known.

        A piece that others follow, and a call between the two passes of others, keep as little as possible,
        until all calls of the step are known.
        """
        captured = step.captured
        if self.given is not None:
            return self.given.solution(step.graph)
        if step.decision is not None:
            return step.decision.solution(step.graph, step.traced.boundary, step.sizes)
        if self.calls.backward_repeats and step.traced.boundary is not None and not captured.continues:
            return self._decide_for_repeats(step, step.traced.boundary)
        if step.is_provisional:
            return self._keep_least(step)
        return self._decide_alone(step, throw=throw)

    def _is_provisional(self, captured: Captured, known: PlannedCall | None) -> bool:
        """Whether a call is one of several of a step that are not known yet, or need more than is known."""
        was_decided = known is not None and known.decision is not None
        is_nested = captured.continues or captured.is_inside or was_decided
        return is_nested or any(call.provisional for call in self.calls.known)

    def _decide_alone(self, step: PricedStep, room: int | None = None, *, throw: bool) -> Solution:
        """The best schedule within the budget, or within a number of bytes, of several that are tried."""
        options = self.options
        if room is not None:
            options = replace(options, budget=room, time_limit=max(LEAST_S, options.time_limit / 4))
        allocated, whole = step.holdings.allocated(), self._whole(step)
        try:
            return decide_step(options, step.graph, step.account, allocated, plain_peak=whole, throw=throw)
        except InfeasibleBudgetError as error:
            raise _advised(error, step) from None

    def _decide_for_repeats(self, step: PricedStep, boundary: int) -> Solution:
        budget = self._budget(step)
        decide = partial(self._decide_alone, step, throw=False)
        solution = decide_for_repeats(decide, step.graph, boundary, budget)
        if solution.problem.budget > budget:
            text = _RETAINED % (format_bytes(budget), solution.problem.budget)
            self.calls.warnings.once("retained", text)
        return solution

    def _keep_least(self, step: PricedStep) -> Solution:
        """The schedule of the least peak that is soon found."""
        timeline = simulate(step.graph, schedule_of(least_memory(step.graph, LEAST_S / 4)))
        budget = self._budget(step)
        if timeline.peak > budget and self.options.strict:
            return self._decide_alone(step, throw=True)
        problem = Problem(graph=step.graph, budget=max(budget, timeline.peak), fixed_order=True)
        return Solution.found(problem, timeline, solver="least-memory")

    def _budget(self, step: PricedStep) -> int:
        return budget_bytes(self.options, step.holdings.allocated(), self._whole(step))

    def _whole(self, step: PricedStep) -> int:
        """The bytes that a budget may be a share of, now that this step is known."""
        return self.whole.grown(keep_all_peak(step.graph) if step.peak_now is None else step.peak_now)

    def emit(self, step: PricedStep, solution: Solution, schedule: Schedule, fusion: Fusion | None) -> Halves:
        """Two graphs, whose runs are noted, so that calls inside of each other are known."""
        watch = None if self.given is None else self.given.watch
        kernels = None if fusion is None else fusion.kernels
        forward, backward = emit(step.traced, schedule, watch, kernels)
        without = partial(without_absent, step.traced, backward)
        if self.given is not None:
            return Halves(forward=forward, backward=backward, without=without)
        call = self.calls.noted(self._planned_call(step, schedule), step.known)
        results = step.traced.returned
        outputs = [k for k, node in enumerate(results) if node not in step.traced.new_values]
        n_results = len(results)
        return Halves(
            forward=forward,
            backward=backward,
            without=without,
            around_forward=lambda run: self.calls.noting(call, below_autograd(run), outputs, n_results),
            around_backward=lambda run: self.calls.noting_backward(call, below_autograd(run)),
        )

    def _planned_call(self, step: PricedStep, schedule: Schedule) -> PlannedCall:
        traced, kinds, holdings = step.traced, step.account.kinds, step.holdings
        tensors = [(k, traced.tensor_of.get(node)) for k, node in enumerate(traced.primals)]
        return PlannedCall(
            graph=step.graph,
            boundary=traced.boundary,
            sizes=step.sizes,
            schedule=schedule,
            batch=[k for k, t in tensors if t is not None and kinds[t] is Kind.BATCH],
            trained=holdings.trained,
            owned=None if self.module is None else holdings.owned_bytes,
            optimizer_bytes=self.options.optimizer_bytes,
            budget=self._budget(step),
            loss_guess=traced.loss_bytes if step.captured.loss is None else 0,
            provisional=step.is_provisional,
            home=weakref.ref(self.calls),
        )


def _advised(error: InfeasibleBudgetError, step: PricedStep) -> InfeasibleBudgetError:
    """The error, with the way out if the outputs of the model need much of the memory."""
    kinds, tensors = step.account.kinds, step.graph.tensors
    returned = sum(t.size for t, kind in zip(tensors, kinds, strict=True) if kind is Kind.OUTPUTS)
    if error.advice or step.captured.continues or returned < max(1, WORTH_A_HINT * error.floor):
        return error
    text = _RETURNED if step.captured.loss == 0 else _OUTSIDE
    return InfeasibleBudgetError(**vars(error) | {"advice": text % format_bytes(returned)})


def _buffers(gm: GraphModule, inputs: Sequence[object]) -> list[int]:
    return [k for k in inputs_of_modules(gm) if not isinstance(inputs[k], nn.Parameter)]

"""From a traced step to a decided one: the planner behind every entry point that runs a model.

    joint graph ↦ traced ↦ priced ↦ schedule within the budget ↦ forward and backward graph

AOTAutograd traces the joint graph and asks for a partition; the plan is made there. Graphs without a backward
pass run as they are.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from torch import nn
from torch.fx import GraphModule

from checkmate import DFGraph, Problem, Solution, minimum_budget, simulate
from checkmate.framework import decide, schedule_of
from checkmate.report import Account, Kind
from checkmate.units import format_bytes, parse_budget
from checkmate_torch.account import Holdings, named
from checkmate_torch.attention import with_kernels_of_target
from checkmate_torch.calls import (
    Call,
    Calls,
    decided_as_one,
    earlier_bytes,
    least_as_one,
    n_outstanding,
    plain_peak_as_one,
)
from checkmate_torch.deciding import budget_bytes, decide_step, log_plan, price_step, refuse_nested
from checkmate_torch.distributed import Ranks, bucket_bytes, decided_together
from checkmate_torch.double_backward import refusing_double_backward
from checkmate_torch.eager import EagerStep, eager_step
from checkmate_torch.emit import emit
from checkmate_torch.lowering import lowered
from checkmate_torch.options import Options
from checkmate_torch.outer_loss import LossBytes, returns_loss
from checkmate_torch.private import Boxed, compile_joint, graph_break
from checkmate_torch.recurrent import with_recurrent_ops
from checkmate_torch.step_plan import Given, StepPlan, TracingDone
from checkmate_torch.symbols import Sizes, are_within, covers, planned_sizes, planning_for
from checkmate_torch.traced_graph import TracedGraph
from checkmate_torch.tracing import trace_joint

__all__ = ["Planner"]

_log = logging.getLogger(__name__)
_LEAST_S = 2.0
"""Seconds to look for the least peak of a call whose step is not known yet."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class Planner:
    """A Dynamo backend with its settings and the plans that it has made.

    Attributes:
        options: how to plan.
        given: a schedule to follow instead of deciding.
        module: its parameters, buffers and gradients are resident too where the graph does not take them.
        only_trace: raise :class:`TracingDone` with the first graph instead of planning it.
        plans: one for each traced graph with a backward pass, in the order of tracing.
        sizes: those that the plans were made for; where sizes may change, later plans cover them too.
        n_outgrown: the number of plans that a later plan covers.
        sizes_before: those for which an earlier planner had as many plans as are allowed.
        calls: the calls of each step that follow the plans.
        warned: the matters that a warning was logged about.
        held: bytes of gradients that are held while the graphs run, if the module is unknown.
    """

    options: Options
    given: Given | None = None
    module: nn.Module | None = field(default=None, repr=False)
    only_trace: bool = False
    plans: list[StepPlan] = field(default_factory=list, repr=False)
    sizes: list[Sizes] = field(default_factory=list, repr=False)
    n_outgrown: int = 0
    sizes_before: Sequence[Sizes] = ()
    calls: Calls = field(default_factory=Calls, repr=False)
    warned: set[str] = field(default_factory=set, repr=False)
    held: int = 0

    def again(self, options: Options) -> Planner:
        """A planner with other options, and no plans yet."""
        return replace(self, options=options, plans=[], n_outgrown=0)

    def without_outgrown(self) -> Planner | None:
        """A planner whose first plans cover those of this one; None if sizes have not grown meanwhile."""
        before = self.sizes_before
        grown = any(not any(are_within(sizes, known) for known in before) for sizes in self.sizes)
        if not grown or 2 * self.n_outgrown < len(self.plans):
            return None
        return replace(self.again(self.options), sizes_before=tuple(self.sizes))

    def charge(self, kind: Kind, size: int, options: Options | None = None) -> bool:
        """Charge ``size`` bytes of a kind in the plans so far, if all of them stay within the budget."""
        options = options or self.options
        charged = [plan.charged(kind, size, options) for plan in self.plans]
        plans = [plan for plan in charged if plan is not None]
        if len(plans) < len(charged):
            return False
        self.plans[:], self.options = plans, options
        return True

    def warn_once(self, about: str, text: str) -> None:
        """Log a warning, the first one about a matter."""
        if about not in self.warned:
            self.warned.add(about)
            _log.warning("%s", text)

    def __call__(self, gm: GraphModule, example_inputs: Sequence[object]) -> Callable[..., object]:
        """Compile a graph that Dynamo captured."""
        gm = with_kernels_of_target(with_recurrent_ops(gm))
        shown = [node.meta.get("example_value") for node in gm.graph.find_nodes(op="placeholder")]
        loss = self.options.loss_bytes
        continues = graph_break(gm) is not None
        if continues or (loss is None and returns_loss(gm)):
            loss = 0
        forward, backward = lowered(self.options.lowering)
        progress = self.options.planning("tracing forward and backward pass")
        with progress, planning_for(shown, self.sizes):
            captured = _Captured(
                inputs=example_inputs,
                loss=loss,
                plain=eager_step(gm, example_inputs, loss=loss) if self.given is None else None,
                continues=continues,
            )
            try:
                call = compile_joint(
                    gm,
                    example_inputs,
                    partition=partial(self._partition, captured=captured),
                    forward=partial(self._forward, forward, captured=captured),
                    backward=partial(self._backward, backward, captured=captured),
                )
            finally:
                captured.inputs = ()  # AOTAutograd keeps the compilers, which must not keep the batch
            self._note_sizes(shown)
        return refusing_double_backward(call)

    def _note_sizes(self, inputs: Sequence[object]) -> None:
        """Note the sizes of a planned graph, which replace smaller ones that it covers."""
        sizes = planned_sizes(inputs)
        outgrown = [known for known in self.sizes if known != sizes and covers(inputs, known)]
        self.n_outgrown += len(outgrown)
        self.sizes[:] = [known for known in self.sizes if known not in (sizes, *outgrown)] + [sizes]

    def _forward(
        self,
        compile_graph: Callable[..., Boxed],
        gm: GraphModule,
        inputs: Sequence[object],
        *,
        captured: _Captured,
    ) -> Boxed:
        """Compile a forward graph. One that has a backward graph remembers what it keeps for that."""
        run = compile_graph(gm, inputs)
        call = captured.call
        if call is None or self.given is not None:
            return run
        return self.calls.noting(call, run, captured.n_outputs, self._warn_of_excess)

    def _backward(
        self,
        compile_graph: Callable[..., Boxed],
        gm: GraphModule,
        inputs: Sequence[object],
        *,
        captured: _Captured,
    ) -> Boxed:
        """Compile a backward graph, which notes that it has run."""
        run, call = compile_graph(gm, inputs), captured.call
        return run if call is None else self.calls.noting_backward(call, run, self._warn_of_repeat)

    def _partition(
        self,
        joint: GraphModule,
        joint_inputs: Sequence[Sequence[object]],
        *,
        num_fwd_outputs: int,
        captured: _Captured,
        **_: object,
    ) -> tuple[GraphModule, GraphModule]:
        """Split a joint graph so that the saved and the recomputed tensors follow the best schedule."""
        refuse_nested(joint_inputs)
        options, inputs = self.options, captured.inputs
        captured.n_outputs = num_fwd_outputs
        besides = {Kind.BUCKETS: bucket_bytes(), Kind.EARLIER_CALLS: captured.earlier}
        if self.module is None:
            besides[Kind.EARLIER_GRADIENTS] = self.held
        holdings = Holdings.of(self.module, inputs, options.fixed | besides)
        traced = trace_joint(
            joint,
            n_primals=len(joint_inputs[0]),
            n_forward_outputs=num_fwd_outputs,
            reserve=holdings.size,
            loss=captured.loss,
            name=self.module.__class__.__name__ if self.module is not None else "",  # of a proxy, too
        )
        graph = named(traced, inputs, self.module)
        given = self.given
        priced = price_step(options, graph, traced.nodes) if given is None else given.priced(graph)
        traced = replace(traced, graph=priced)
        account = holdings.account(traced)
        plain_peak = None
        if captured.plain is not None:
            plain_peak = captured.plain.peak_beside(priced, traced.nodes, holdings.size)
        if self.only_trace:
            raise TracingDone(traced, account, plain_peak)
        if given is None:
            replays = priced.fixed_size - holdings.size  # bytes of the graph that a plan can't do without
            whole = None if plain_peak is None else plain_peak + replays
            solution, known = self._decided(traced, account, holdings, whole, captured)
        else:
            solution, known = given.solution(priced), True
        plan = StepPlan(
            traced=traced,
            solution=solution,
            account=account,
            lowering=options.lowering,
            plain_peak=plain_peak,
            loss_guess=traced.loss_bytes if captured.loss is None else 0,
            in_pieces=captured.continues or captured.depth > 0,
        )
        modules = emit(traced, schedule_of(solution), given.watch if given is not None else None)
        captured.call = Call(
            traced=traced,
            schedule=schedule_of(solution),
            depth=captured.depth,
            earlier=captured.earlier,
            batch=holdings.own_batch(captured.of_earlier),
            trained=holdings.trained,
            owned=None if self.module is None else holdings.owned_bytes + options.optimizer_bytes,
            home=weakref.ref(self.calls),
            budget=solution.problem.budget,
            provisional=captured.continues and not known,
        )
        self.plans.append(plan)
        log_plan(self.plans, holdings)
        return modules

    def _decided(
        self,
        traced: TracedGraph,
        account: Account,
        holdings: Holdings,
        plain_peak: int | None,
        captured: _Captured,
    ) -> tuple[Solution, bool]:
        """The schedule of a graph, and whether it was decided together with those of the step's other calls.

        A piece that others follow, and a call for which earlier calls leave no room, keep as little as
        possible, until all calls of the step are known.
        """
        graph, options = traced.graph, self.options
        known = self.calls.known(graph, captured.depth)
        if known is not None:
            charged = known.charged(graph)
            timeline = simulate(charged, known.schedule)
            problem = Problem(graph=charged, budget=max(known.budget, timeline.peak), fixed_order=True)
            return Solution.found(problem, timeline, solver="joint"), True
        decide_within = partial(
            decide_step, options, graph, account, holdings.allocated(), plain_peak=plain_peak
        )
        if not captured.continues and not captured.earlier:
            return decide_within(), False
        if not captured.continues:
            solution = decide_within(throw=False)
            if solution.schedule is not None:
                return solution, False
        least = minimum_budget(graph, fixed_order=True, time_limit=_LEAST_S)
        budget = budget_bytes(options, graph, holdings.allocated(), plain_peak)
        timeline = simulate(graph, schedule_of(least))
        if timeline.peak > budget:
            if options.strict:
                return decide_within(), False
            self.warn_once(
                "first step",
                f"the first step takes {format_bytes(timeline.peak)}, more than the budget of "
                f"{format_bytes(budget)}: earlier calls keep {format_bytes(captured.earlier)} for their "
                "backward passes. The next step is planned for all calls of this model together",
            )
        problem = Problem(graph=graph, budget=max(budget, timeline.peak), fixed_order=True)
        return Solution.found(problem, timeline, solver="least-memory"), False

    def _warn_of_excess(self, call: Call, earlier: int) -> None:
        """Warn of a call that runs while earlier calls keep more bytes than its plan counts."""
        more = earlier - call.earlier
        peak = simulate(call.traced.graph, call.schedule).peak + more
        if peak > call.budget:
            self.warn_once(
                "excess",
                f"earlier calls keep {format_bytes(earlier)} for their backward passes while this one runs, "
                f"and its plan counts {format_bytes(call.earlier)}: the step may exceed its budget of "
                f"{format_bytes(call.budget)} by {format_bytes(peak - call.budget)}. Compute all in one call "
                "of one model, which is planned as a whole",
            )

    def _warn_of_repeat(self, call: Call) -> None:
        """Warn of a graph that is kept for another backward pass."""
        kept = simulate(call.traced.graph, call.schedule).peak - call.traced.graph.base_size
        self.warn_once(
            "repeat",
            "a backward pass ran more than once after one forward pass: with retain_graph=True autograd "
            "keeps all saved tensors to the end, so that the step may exceed its budget by up to "
            f"{format_bytes(kept)}. Add the losses up and run one backward pass",
        )

    def warn_of_repeated_calls(self, optimizer: str) -> None:
        """Warn of an optimizer that runs the model several times in one step; an empty name is none."""
        if not optimizer:
            return
        self.warn_once(
            "optimizer",
            f"{optimizer} runs the model several times in one step, and the tensors that it holds meanwhile "
            "are not counted: the step may exceed its budget. Pass their bytes as reserve=",
        )

    def is_outdated(self) -> bool:
        """Whether there are decisions for whole steps, this one's calls included, that no plan follows yet.

        The last step's calls are decided together first, if they were not. True is said once.
        """
        calls = self.calls.unsettled()
        if calls is not None:
            self._settle(calls)
        renewed, self.calls.renewed = self.calls.renewed, False
        return renewed

    def _settle(self, calls: Sequence[Call]) -> None:
        """Decide the schedules of a step's calls together; warn if there are none within the budget."""
        options = self.options
        budget = min(call.budget for call in calls)
        if options.is_share:
            budget = parse_budget(options.budget, plain_peak_as_one(calls))
        limit = max(_LEAST_S, options.time_limit / (2 * len(calls)))

        def decide_call(graph: DFGraph, room: int) -> Solution:
            each = replace(options, time_limit=limit)
            problem = Problem(graph=graph, budget=room, time_limit=limit, fixed_order=True)
            solve = partial(decide, graph, options=each, fixed_order=True, throw=False)
            return decided_together(Ranks.of(options.process_group), problem, solve)

        decisions = decided_as_one(calls, budget, decide_call)
        if decisions is None:
            decisions, least = least_as_one(calls)
            self.warn_once(
                "together",
                f"no schedules for the {len(calls)} calls of a step together stay within "
                f"{format_bytes(budget)}, and the step may exceed that; the least budget known to work for "
                f"them is {least} bytes ({format_bytes(least)})",
            )
        for decision in decisions:
            home = decision.call.home()
            if home is not None:
                home.decided.append(replace(decision, budget=budget))
                home.renewed = True


@dataclass(slots=True, kw_only=True, eq=False)
class _Captured:
    """A graph that Dynamo captured, and what it found around it.

    Attributes:
        inputs: example inputs; real tensors, except in a trace ahead.
        loss: bytes of the caller's loss; None = unknown.
        plain: the step as eager PyTorch runs it, if it could be followed.
        continues: whether the graph ends at a graph break, so that others follow.
        depth: the number of calls whose backward passes are due.
        earlier: bytes that those calls keep, beside the inputs.
        of_earlier: bytes of the inputs that those calls keep.
        n_outputs: the number of results that the caller gets.
        call: the planned call, once there is one.
    """

    inputs: Sequence[object]
    loss: int | LossBytes | None
    plain: EagerStep | None
    continues: bool
    depth: int = field(default_factory=n_outstanding)
    earlier: int = 0
    of_earlier: int = 0
    n_outputs: int = 0
    call: Call | None = None

    def __post_init__(self) -> None:
        """Ask for the bytes of earlier calls."""
        if self.depth:
            self.earlier = earlier_bytes(self.inputs)
            self.of_earlier = earlier_bytes() - self.earlier

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

from checkmate import Problem, Solution, UnsupportedModelError, minimum_budget, simulate
from checkmate.framework import schedule_of
from checkmate.report import Account, Kind
from checkmate.units import format_bytes
from checkmate_torch.capture.attention_kernels import with_kernels_of_target
from checkmate_torch.capture.recurrent_ops import with_recurrent_ops
from checkmate_torch.distributed.ranks import bucket_bytes
from checkmate_torch.memory.account import Holdings, named
from checkmate_torch.memory.plain_graph import eager_step
from checkmate_torch.ops.sizes import Sizes, are_within, covers, planned_sizes, planning_for
from checkmate_torch.optimizer.state import States
from checkmate_torch.planning.calls import Call, Calls
from checkmate_torch.planning.captured_graph import CapturedGraph
from checkmate_torch.planning.decide import budget_bytes, decide_step, log_plan, refuse_nested
from checkmate_torch.planning.fusing import Fuser
from checkmate_torch.planning.joint_budget import settle
from checkmate_torch.planning.options import Options
from checkmate_torch.planning.retain_graph import decide_for_repeats
from checkmate_torch.planning.step_plan import Given, StepPlan, TracingDone
from checkmate_torch.private import Boxed, boxed_code, compile_joint, graph_break
from checkmate_torch.running.double_backward import refusing_double_backward
from checkmate_torch.running.emit import emit
from checkmate_torch.tracing.joint_graph import trace_joint
from checkmate_torch.tracing.loss_bytes import returns_loss
from checkmate_torch.tracing.traced_graph import TracedGraph

__all__ = ["IGNORED_GRADIENTS", "Planner"]

_log = logging.getLogger(__name__)
_LEAST_S = 2.0
"""Seconds to look for the least peak of a call whose step is not known yet."""
IGNORED_GRADIENTS = (
    "while gradients of earlier backward passes are held, no plan is within the budget: training goes on "
    "with plans that do not count them. %s"
)
_RETAINED = (
    "no schedule stays within %s where backward passes keep the graph: the step may exceed that; the least "
    "budget known to work is %d bytes. Add the losses up and run one backward pass"
)


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
        repeats: whether backward passes run more than once after one forward pass.
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
    repeats: bool = False

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
        """Log a warning that the budget may be exceeded, the first one about a matter; raise it if strict."""
        if self.options.strict:
            raise UnsupportedModelError(text)
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
        progress = self.options.planning("tracing forward and backward pass")
        with progress, planning_for(shown, self.sizes):
            captured = CapturedGraph(
                inputs=example_inputs,
                loss=loss,
                plain=eager_step(gm, example_inputs, loss=loss) if self.given is None else None,
                continues=continues,
            )
            fuser = Fuser(options=self.options, given=self.given)
            compiled = partial(
                compile_joint,
                gm,
                example_inputs,
                partition=partial(self._partition, captured=captured, fuser=fuser),
                forward=partial(self._forward, captured=captured),
                backward=partial(self._backward, captured=captured),
            )
            try:
                call = fuser.planned(gm, compiled)
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

    def _forward(self, gm: GraphModule, _inputs: Sequence[object], *, captured: CapturedGraph) -> Boxed:
        """Compile a forward graph. One that has a backward graph remembers what it keeps for that."""
        run, call = boxed_code(gm), captured.call
        if call is None or self.given is not None:
            return run
        return self.calls.noting(call, run, captured.n_outputs, self._warn_of_excess)

    def _backward(self, gm: GraphModule, _inputs: Sequence[object], *, captured: CapturedGraph) -> Boxed:
        """Compile a backward graph, which notes that it has run."""
        run, call = boxed_code(gm), captured.call
        if call is None or self.given is not None:
            return run
        return self.calls.noting_backward(call, run, self._warn_of_repeat)

    def _partition(
        self,
        joint: GraphModule,
        joint_inputs: Sequence[Sequence[object]],
        *,
        num_fwd_outputs: int,
        captured: CapturedGraph,
        fuser: Fuser,
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
        if self.repeats:  # gradients of the first backward pass, held in the next
            more = sum(holdings.trained.values()) - holdings.fixed.get(Kind.EARLIER_GRADIENTS, 0)
            holdings = holdings.with_further(Kind.EARLIER_GRADIENTS, max(0, more))
        given = self.given

        def trace() -> TracedGraph:
            traced = trace_joint(
                joint,
                n_primals=len(joint_inputs[0]),
                n_forward_outputs=num_fwd_outputs,
                reserve=holdings.size,
                loss=captured.loss,
                name=self.module.__class__.__name__ if self.module is not None else "",  # of a proxy, too
            )
            return replace(traced, graph=named(traced, inputs, self.module))

        traced, plain = fuser.traced(trace)
        if given is not None:
            traced = replace(traced, graph=given.priced(traced.graph))
        plain_peak = None
        if captured.plain is not None:
            plain_peak = captured.plain.peak_beside(*plain, holdings.size)
        account = holdings.account(traced)
        if self.only_trace:
            raise TracingDone(traced, account, plain_peak)
        if given is None:
            replays = (
                traced.graph.fixed_size - holdings.size
            )  # bytes of the graph that a plan can't do without
            whole = None if plain_peak is None else plain_peak + replays
            solution, known = self._decided(traced, account, holdings, whole, captured)
        else:
            solution, known = given.solution(traced.graph), True
        fusion = fuser.program(traced, schedule_of(solution), solution.problem)
        if fusion is not None:
            solution = fusion.solution(solution)
        plan = StepPlan(
            traced=traced,
            solution=solution,
            account=account,
            fusion=fusion,
            plain_peak=plain_peak,
            loss_guess=traced.loss_bytes if captured.loss is None else 0,
            in_pieces=captured.continues or captured.depth > 0,
        )
        modules = emit(
            traced,
            schedule_of(solution),
            given.watch if given is not None else None,
            fusion.kernels if fusion is not None else None,
        )
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
        captured: CapturedGraph,
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
        allocated = holdings.allocated()

        def decide_within(room: int | None = None, *, throw: bool = True) -> Solution:
            limit = max(_LEAST_S, options.time_limit / 4)  # of several rooms
            within = options if room is None else replace(options, budget=room, time_limit=limit)
            return decide_step(within, graph, account, allocated, plain_peak=plain_peak, throw=throw)

        if self.repeats and traced.boundary is not None and not captured.continues:
            budget = budget_bytes(options, graph, allocated, plain_peak)
            solution = decide_for_repeats(partial(decide_within, throw=False), graph, traced.boundary, budget)
            if solution.problem.budget > budget:
                self.warn_once("retained", _RETAINED % (format_bytes(budget), solution.problem.budget))
            return solution, False
        if not captured.continues and not captured.earlier:
            return decide_within(), False
        if not captured.continues:
            solution = decide_within(throw=False)
            if solution.schedule is not None:
                return solution, False
        least = minimum_budget(graph, fixed_order=True, time_limit=_LEAST_S)
        budget = budget_bytes(options, graph, allocated, plain_peak)
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
        """Warn of a graph that is kept for another backward pass, and plan for that from the next step on."""
        if self.repeats:
            return
        self.repeats = self.calls.renewed = True
        kept = simulate(call.traced.graph, call.schedule).peak - call.traced.graph.base_size
        self.warn_once(
            "repeat",
            "a backward pass ran more than once after one forward pass: with retain_graph=True autograd "
            "keeps all saved tensors to the end, so that this step may exceed its budget by up to "
            f"{format_bytes(kept)}. Later steps are planned for that; one backward pass of the sum of the "
            "losses needs less",
        )

    def count_state(self, states: States, name: str, calls: int = 0) -> Options | None:
        """Charge the bytes of optimizers in the plans so far.

        Args:
            states: of the optimizers.
            name: of the one that was noted; empty = none.
            calls: number of its calls of the model. Unless it is a power of two, a warning takes the place of
                planning again, because state that grows with each call would need a plan for each.

        Returns:
            the options to plan again with, if the plans have no room.
        """
        more = states.size - self.options.optimizer_bytes
        if not name or more <= 0:
            return None
        options = self.options.with_state(states.size)
        if self.charge(Kind.OPTIMIZER, states.size, options):
            return None
        if calls & (calls - 1):
            self.warn_once(
                "optimizer",
                f"{name} holds {format_bytes(more)} more than the plans count, and its step may exceed the "
                "budget by that until its state has doubled. Pass the bytes as reserve=",
            )
            return None
        _log.info(
            "%s keeps %s that the plans do not count: the next call plans again. optimizer= counts them from "
            "the first step",
            name,
            format_bytes(more),
        )
        return options

    def is_outdated(self) -> bool:
        """Whether there are decisions for whole steps, this one's calls included, that no plan follows yet.

        The last step's calls are decided together first, if they were not. True is said once.
        """
        calls = self.calls.unsettled()
        if calls is not None:
            settle(calls, self.options, partial(self.warn_once, "together"))
        renewed, self.calls.renewed = self.calls.renewed, False
        return renewed

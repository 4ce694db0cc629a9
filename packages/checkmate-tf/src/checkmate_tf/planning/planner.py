"""From a captured step to a decided one: its schedule, the program that runs, and its bytes.

    captured ↦ traced ↦ priced ↦ updates settled ↦ schedule within the budget ↦ program

The simulator bounds the bytes of the schedule. The bytes of the program are counted too, kernel by kernel:
where small tensors, which the graph omits, or the allocator's chunks bring them over the budget, bytes are
reserved for these and the problem is solved again; where no bytes are left to reserve, the schedule of least
peak may fit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import tensorflow as tf

from checkmate import (
    DFGraph,
    InfeasibleBudgetError,
    InvalidScheduleError,
    Schedule,
    Solution,
    Status,
    floor,
    minimum_budget,
)
from checkmate.cost import OpProfile
from checkmate.framework import AUTO, Lowest, decide, in_bytes, schedule_of
from checkmate.heuristics import PlainOrder
from checkmate.report import Account, Kind
from checkmate.units import format_bytes, parse_budget
from checkmate_tf.capture.function_capture import Captured
from checkmate_tf.costs.price import price, profile_ops
from checkmate_tf.memory.account import kinds_of
from checkmate_tf.memory.allocator import expected_bytes
from checkmate_tf.memory.plain_executor import plain_program
from checkmate_tf.memory.residency import held_by_group, with_lent, workspaces_of
from checkmate_tf.memory.reuses import with_reuses
from checkmate_tf.ops.device import device_of_this_machine, is_limited, obtainable_bytes
from checkmate_tf.planning.options import Counts, Options
from checkmate_tf.planning.step_plan import StepPlan
from checkmate_tf.running.addn_order import starts_of
from checkmate_tf.running.program import Program
from checkmate_tf.running.settled import Settled, settle
from checkmate_tf.tracing.needs import SMALL
from checkmate_tf.tracing.step_graph import TracedGraph, is_smaller, trace

__all__ = ["plan_step", "price_step"]

_TRIES = 5
_ADVICE_SHARE = 0.3
"""Share of the time limit for finding a feasible budget, which the error names."""
_REFINEMENTS, _UNUSED = 3, 0.01
"""How often fewer bytes are reserved, while that may bring a larger share of the budget than this to use."""
_SPARE = 0.002
"""Share of the budget that may be reserved beyond the small tensors of the traced order, to solve once."""
_AGAIN_SHARE = 0.3
"""Share of the usual time for solving again from a schedule that is slightly over the budget."""
_SLIGHT = 32 * SMALL
"""Bytes that small tensors may make up: the plain step is allowed as many more as its planned order needs, so
that 100 % of a step of small tensors can be met."""
_BESIDES: Mapping[Counts, tuple[Kind, str]] = {
    "live": (Kind.SMALL, "small tensors, which are not planned, bring"),
    "allocator": (Kind.CHUNKS, "the chunks of TensorFlow's allocator, which are larger than tensors, bring"),
}
"""Bytes that the simulator does not count: their kind, and the beginning of a reason."""
_lowest = Lowest()
_log = logging.getLogger(__name__)


def plan_step(
    captured: Captured, options: Options, *, optimizer: Collection[int] = (), like: StepPlan | None = None
) -> StepPlan:
    """Plan a step.

    Args:
        captured: the step.
        options: how to plan.
        optimizer: ids of the handles of an optimizer's variables.
        like: an earlier plan. It is used again if the step is the same on smaller tensors: the last batch of
            an epoch needs no solver. A budget that is a share is never smaller than it was there.

    Raises:
        BudgetError: if the budget can't be read, or the free memory of the device is unknown.
        InfeasibleBudgetError: if no schedule was found; names a budget that works.
    """
    options.report("reading the graph")
    traced = trace(captured)
    if like is not None and is_smaller(traced, like.traced):
        plan = _smaller(traced, like)
        if plan.expected <= plan.solution.problem.budget:  # smaller chunks may leave larger gaps
            return plan
    least = like.solution.problem.budget if like is not None and options.budget != AUTO else 0
    return _Planner(traced=traced, options=options, optimizer=optimizer, least=least).plan()


def price_step(
    captured: Captured, options: Options, *, optimizer: Collection[int] = ()
) -> tuple[Settled, Account]:
    """The step that a plan would be made for, and the account of its bytes; arguments as above."""
    planner = _Planner(traced=trace(captured), options=options, optimizer=optimizer, least=0)
    profiles = planner.profiles()
    settled = planner.settled(profiles, workspaces_of(planner.traced, profiles))
    return settled, planner.account(settled.graph)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """A budget to meet.

    Attributes:
        settled: the step.
        budget: in bytes.
        as_traced: the order in which the step was traced.
        traced_peak: bytes that the traced order needs.
        small: those of them that the simulator does not count.
        plain_peak: as in :class:`StepPlan`.
        made: (solution, account) ↦ plan.
    """

    settled: Settled
    budget: int
    as_traced: PlainOrder
    traced_peak: int
    small: int
    plain_peak: int
    made: Callable[[Solution, Account], StepPlan]

    @property
    def graph(self) -> DFGraph:
        """The graph of the step."""
        return self.settled.graph

    @property
    def reserved(self) -> int:
        """The bytes to reserve at first; with recomputation, more small tensors are often alive at once."""
        spare = min(self.small, int(_SPARE * self.budget)) if self.traced_peak > self.budget else 0
        return self.small + spare


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planner:
    traced: TracedGraph
    options: Options
    optimizer: Collection[int]
    least: int

    @property
    def counts(self) -> Counts:
        """The bytes that the budget bounds."""
        return self.options.counts or ("allocator" if is_limited(device_of_this_machine()) else "live")

    def plan(self) -> StepPlan:
        """The plan for the budget."""
        profiles = self.profiles()
        self.options.report("counting bytes")
        workspaces = workspaces_of(self.traced, profiles)
        settled = self.settled(profiles, workspaces)
        graph = settled.graph
        as_traced = _as_traced(graph, settled.order)
        counts = self.counts
        _, needed = _expected(settled, Schedule.from_sequence(graph, as_traced.order), workspaces, counts)
        simulated = as_traced.peak(graph)
        traced_peak = max(simulated, needed)
        plain_peak = _plain_peak(settled, workspaces, profiles, counts)
        if plain_peak < traced_peak <= plain_peak + _SLIGHT:
            plain_peak = traced_peak

        def made(solution: Solution, account: Account) -> StepPlan:
            self.options.report("counting bytes")
            schedule = settled.lean(schedule_of(solution))
            found, expected = _expected(settled, schedule, workspaces, counts)
            return StepPlan(
                counts=counts,
                settled=settled,
                solution=solution,
                schedule=schedule,
                account=account,
                program=found,
                workspaces=workspaces,
                plain_peak=plain_peak,
                expected=expected,
            )

        task = _Task(
            settled=settled,
            budget=self._budget(graph, plain_peak),
            as_traced=as_traced,
            traced_peak=traced_peak,
            small=max(needed - simulated, 0),
            plain_peak=plain_peak,
            made=made,
        )
        return self._within(task)

    def _within(self, task: _Task) -> StepPlan:
        """A plan whose program is expected within the budget, all bytes included."""
        small, over, least, known = task.reserved, 0, None, None
        for attempt in range(1, _TRIES + 1):
            solution, account = self._solved(task, small, known)
            if solution.timeline is not None:
                plan = task.made(solution, account)
                if plan.expected <= task.budget:
                    return self._refined(task, plan, small, over)
                known, over = solution.schedule, small
                # Also the bytes that the schedule left free: else the same schedule would be found again.
                small += task.budget - solution.timeline.peak + attempt * (plan.expected - task.budget)
            elif attempt == 1 and small:
                small = 0
                continue
            elif small and least is None and task.traced_peak > task.budget:
                # Fewer bytes must do: reserve those that the schedule of least known peak leaves free.
                least = self._least(task, self.options.time_limit)
                small = task.budget - (least.solution.peak or 0)
            else:
                break
            _log.info("%s reserved: %s", format_bytes(small), _BESIDES[self.counts][0])
            if small <= 0:
                break
        return self._otherwise(task, solution, small, least)

    def _refined(self, task: _Task, plan: StepPlan, small: int, over: int) -> StepPlan:
        """A plan that leaves fewer bytes unused; with ``small`` bytes reserved it fits, with ``over`` not."""
        for _ in range(_REFINEMENTS):
            usable = min(small - over, task.budget - plan.expected)
            if usable <= _UNUSED * task.budget or plan.solution.cost <= task.graph.ideal_cost:
                break
            middle = (small + over) // 2
            solution, account = self._solved(task, middle, schedule_of(plan.solution))
            found = plan if solution.timeline is None else task.made(solution, account)
            if found.expected <= task.budget and found.solution.cost < plan.solution.cost:
                plan, small = found, middle
            else:
                over = middle
        return plan

    def _otherwise(self, task: _Task, solution: Solution, small: int, least: StepPlan | None) -> StepPlan:
        """The traced order, or the schedule of least known peak, if the budget allows one of them.

        With ``small`` bytes reserved every schedule found is over the budget; these may meet it.
        """
        if small and task.traced_peak <= task.budget:
            return task.made(*self._solved(task, 0, plain=True))
        least = least or self._least(task, self.options.time_limit * (1 if small else _ADVICE_SHARE))
        if (small or self.options.solver == "auto") and least.needed <= task.budget:
            problem = replace(least.solution.problem, budget=task.budget)
            return replace(least, solution=replace(least.solution, problem=problem))
        raise self._infeasible(task, solution, small, min(least.needed, task.traced_peak))

    def _least(self, task: _Task, seconds: float) -> StepPlan:
        """The plan that needs the fewest bytes, of the schedules of least peak that were found up to now."""
        self.options.report("finding the least budget")
        solution, account = minimum_budget(task.graph, time_limit=seconds), self.account(task.graph)
        plan = task.made(solution, account)
        lowest = _lowest.remember((task.graph.digest, self.counts), plan.needed, schedule_of(solution))
        if lowest is solution.schedule:
            return plan
        problem = replace(solution.problem, budget=plan.needed)
        return task.made(Solution.found(problem, lowest, solver="known"), account)

    def profiles(self) -> Mapping[tf.Operation, OpProfile]:
        if not self.options.workspaces and self.options.cost_model != "profiled":
            return {}
        inside = (op for run in self.traced.runs.values() for op in run.ops)
        ops = list(dict.fromkeys([*self.traced.heavy, *inside]))
        return profile_ops(ops, on_disk=self.options.cache, on_progress=self.options.listener())

    def settled(
        self, profiles: Mapping[tf.Operation, OpProfile], workspaces: Mapping[tf.Operation, int]
    ) -> Settled:
        """The step with costs, workspaces and the tensors that ops reuse."""
        return with_reuses(settle(self.traced, self.priced(profiles, workspaces)), workspaces)

    def priced(
        self, profiles: Mapping[tf.Operation, OpProfile], needs: Mapping[tf.Operation, int]
    ) -> DFGraph:
        groups, options = self.traced.groups, self.options
        graph = replace(self.traced.graph, tensors=with_lent(self.traced, needs))
        ops = []
        for op, group in zip(graph.ops, groups, strict=True):
            left = sum(graph.tensors[t].size for t in op.outputs)
            held = held_by_group(self.traced, group, needs)
            ops.append(replace(op, workspace=max(held - left, 0)))
        graph = replace(graph, ops=tuple(ops), fixed_size=graph.fixed_size + options.reserve)
        return price(
            graph,
            groups,
            options.cost_model,
            runs={op: run.ops for op, run in self.traced.runs.items()},
            profiles=profiles,
            workspaces=False,
            on_disk=options.cache,
            on_progress=options.listener(),
        )

    def _budget(self, graph: DFGraph, plain_peak: int) -> int:
        device = device_of_this_machine()
        options = in_bytes(self.options, device, graph.base_size, partial(obtainable_bytes, device))
        return max(parse_budget(options.budget, plain_peak), self.least)

    def account(self, graph: DFGraph, small: int = 0) -> Account:
        """The use of each byte, ``small`` of them for what the simulator does not count."""
        constants, kind = graph.fixed_size - self.options.reserve, _BESIDES[self.counts][0]
        fixed = {Kind.CONSTANTS: constants, Kind.RESERVE: self.options.reserve, kind: small}
        kinds = kinds_of(self.traced, graph, self.optimizer)
        return Account(kinds=kinds, fixed={kind: size for kind, size in fixed.items() if size})

    def _solved(
        self, task: _Task, small: int, known: Schedule | None = None, *, plain: bool = False
    ) -> tuple[Solution, Account]:
        """Solve with ``small`` bytes reserved; ``plain=True`` forces the traced order.

        The solver gets little time if it can repair the schedule ``known``, more if that finds none.
        """
        options = self.options
        account = self.account(task.graph, small)
        graph = replace(task.graph, fixed_size=task.graph.fixed_size + small)
        if plain:
            options = replace(options, solver=task.as_traced, cache=False)
        usual_s = options.usual_s(graph)
        tries: dict[float, Schedule | None] = {usual_s: None}
        if known is not None:
            tries = {_AGAIN_SHARE * usual_s: known, **tries}
        if known is not None or small != task.reserved or not small:  # else fewer bytes are reserved next
            tries[options.time_limit] = None
        for limit, start in tries.items():
            timed = replace(options, time_limit=limit)
            solution = decide(graph, task.budget, timed, plain=task.as_traced, start=start, throw=False)
            if solution.timeline is not None or solution.status is Status.INFEASIBLE:
                break
        return solution, account

    def _infeasible(self, task: _Task, solution: Solution, small: int, minimum: int) -> InfeasibleBudgetError:
        """The error; a proof that holds with bytes reserved does not hold without them."""
        size, op = floor(task.graph)
        reason = f"{_BESIDES[self.counts][1]} every schedule found over the budget"
        error = InfeasibleBudgetError(
            budget=task.budget,
            minimum=minimum,
            floor=size,
            bottleneck=task.graph.ops[op].name if op is not None else None,
            proved=not small and solution.status is Status.INFEASIBLE,
            reason=reason if small else solution.origin.get("reason", ""),
            whole=task.plain_peak,
        )
        return self.account(task.graph).explained(error, task.graph)


def _as_traced(graph: DFGraph, order: Sequence[int]) -> PlainOrder:
    """The traced order; the graph's own, if an update has to wait for an op that was traced after it."""
    traced = PlainOrder(order=tuple(sorted(range(graph.n_ops), key=order.__getitem__)))
    try:
        traced.peak(graph)
    except InvalidScheduleError:
        return PlainOrder(order=tuple(range(graph.n_ops)))
    return traced


def _expected(
    settled: Settled, schedule: Schedule, workspaces: Mapping[tf.Operation, int], counts: Counts
) -> tuple[Program, int]:
    """The program of a schedule that frees early, and the bytes that it will need at its peak."""
    found = settled.program(schedule)
    return found, expected_bytes(found, workspaces, settled.graph, counts)


def _plain_peak(
    settled: Settled,
    workspaces: Mapping[tf.Operation, int],
    profiles: Mapping[tf.Operation, OpProfile],
    counts: Counts,
) -> int:
    """The bytes that the step will need at its peak as TensorFlow runs it without a plan."""
    found, needs = plain_program(settled.traced, workspaces, profiles, device_of_this_machine())
    return expected_bytes(found, needs, settled.graph, counts)


def _smaller(traced: TracedGraph, plan: StepPlan) -> StepPlan:
    """A plan for the same step on smaller tensors; costs and workspaces stay, as upper bounds."""
    _log.info("the step equals an earlier one on smaller tensors: its schedule is used again")
    ops = zip(plan.traced.heavy, traced.heavy, strict=True)
    workspaces = {op: plan.workspaces.get(before, 0) for before, op in ops}
    known, problem = plan.settled, plan.solution.problem
    tensors = (*with_lent(traced, workspaces), *known.graph.tensors[traced.graph.n_tensors :])
    graph = replace(known.graph, tensors=tensors)
    settled = Settled(traced=traced, graph=graph, order=known.order, starts=starts_of(traced))
    problem = replace(problem, graph=replace(problem.graph, tensors=tensors))
    found, expected = _expected(settled, plan.schedule, workspaces, plan.counts)
    return replace(
        plan,
        settled=settled,
        solution=Solution.found(problem, schedule_of(plan.solution), solver="known"),
        program=found,
        workspaces=workspaces,
        plain_peak=_plain_peak(settled, workspaces, {}, plan.counts),
        expected=expected,
    )

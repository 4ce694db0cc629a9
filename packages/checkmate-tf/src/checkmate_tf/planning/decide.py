"""Decide the schedule of a priced step, so that the program that runs stays within the budget.

    budget, reserve ↦ schedule ↦ program ↦ expected bytes ≤ budget, or another reserve

The simulator bounds the bytes of a schedule, without small tensors and the allocator's chunks. Both are
included when the bytes of the program are counted, kernel by kernel. If these exceed the budget, more bytes
are reserved and the problem is solved again; if no bytes are left to reserve, the schedule of least peak may
still fit.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from checkmate import (
    DFGraph,
    InfeasibleBudgetError,
    InvalidScheduleError,
    Problem,
    Schedule,
    Solution,
    Status,
    floor,
    minimum_budget,
    simulate,
)
from checkmate.framework import Lowest, decide, in_bytes, schedule_of
from checkmate.heuristics import PlainOrder
from checkmate.units import format_bytes, parse_budget
from checkmate_tf.memory.allocator import Counts
from checkmate_tf.ops.device import device_of_this_machine, obtainable_bytes
from checkmate_tf.planning.options import Options
from checkmate_tf.planning.priced_step import UNCOUNTED, PricedStep
from checkmate_tf.planning.step_plan import StepPlan
from checkmate_tf.tracing.needs import SMALL

__all__ = ["Decision", "PlainStep", "Reserve", "budget_bytes"]

_TRIES = 5
_ADVICE_SHARE = 0.3
"""Share of the time limit for finding a feasible budget, which the error names."""
_REFINEMENTS = 3
"""How often fewer bytes are reserved, once a plan is within the budget."""
_UNUSED = 0.01
"""Fewer bytes are reserved only if that can bring at least this share of the budget to use."""
_SURPLUS = 0.05
"""A smaller step follows the schedule of a larger one if at most this share of the budget stays unused."""
_SPARE = 0.002
"""Share of the budget that is reserved beyond what the traced order needs, so that one solve is enough."""
_AGAIN_SHARE = 0.3
"""Share of the usual time for solving again from a schedule that is slightly over the budget."""
_SLIGHT = 32 * SMALL
"""The peak of the plain step is raised to the need of its traced order if at most these bytes are lacking, so
that a step of small tensors can meet a budget of 100 %."""
_REASONS: Mapping[Counts, str] = {
    "live": "small tensors, which are not planned, bring every schedule found over the budget",
    "allocator": "the chunks of TensorFlow's allocator, which are larger than tensors, bring every schedule "
    "found over the budget",
}
_lowest = Lowest()
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainStep:
    """A step without recomputation.

    Attributes:
        order: the order in which it was traced.
        needed: bytes that this order needs.
        uncounted: the part of these bytes that the simulator does not count.
        peak: bytes that the step needs as TensorFlow runs it without a plan. Budgets may be shares of it.
    """

    order: PlainOrder
    needed: int
    uncounted: int
    peak: int

    @classmethod
    def of(cls, step: PricedStep) -> PlainStep:
        """Count the bytes of a step without recomputation."""
        order = _traced_order(step)
        simulated = order.peak(step.graph)
        _, expected = step.emit(Schedule.from_sequence(step.graph, order.order))
        needed, peak = max(simulated, expected), step.plain_peak
        if peak < needed <= peak + _SLIGHT:
            peak = needed
        return cls(order=order, needed=needed, uncounted=max(expected - simulated, 0), peak=peak)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """Bytes of the budget that the solver must leave free, for what the simulator does not count.

    Attributes:
        size: the bytes to reserve.
        over: the largest reserve that was too small: with it, the program was over the budget.
        start: the schedule of that program, from which the solver starts.
        least: the plan that needs the fewest bytes, if it was looked for.
    """

    size: int
    over: int = 0
    start: Schedule | None = None
    least: StepPlan | None = None


def budget_bytes(options: Options, step: PricedStep, plain: PlainStep) -> int:
    """The budget in bytes.

    Raises:
        BudgetError: if it can't be read, or the free memory of the device is unknown.
    """
    device = device_of_this_machine()
    options = in_bytes(options, device, step.graph.base_size, partial(obtainable_bytes, device))
    return parse_budget(options.budget, plain.peak)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The search for a plan of a step within a budget, all bytes included.

    Attributes:
        step: the step.
        plain: the step without recomputation.
        budget: in bytes.
        options: the solver and its time limit.
    """

    step: PricedStep
    plain: PlainStep
    budget: int
    options: Options

    def plan(self) -> StepPlan:
        """Find a plan whose program is expected to stay within the budget.

        Raises:
            InfeasibleBudgetError: if no schedule was found; names a budget that works.
        """
        reserve = self._first
        for attempt in range(1, _TRIES + 1):
            solution = self._solve(reserve)
            if solution.timeline is None:
                following = self._less(reserve, attempt)
            else:
                plan = self._plan(solution, reserve)
                if plan.expected <= self.budget:
                    return self._refined(plan, reserve)
                following = self._more(reserve, plan, attempt)
            if following is None:
                break
            reserve = following
            _log.info("%s reserved: %s", format_bytes(reserve.size), UNCOUNTED[self.step.counts])
            if reserve.least is not None and reserve.size <= 0:
                break  # nothing is left to reserve
        return self._otherwise(solution, reserve)

    def follow(self, known: Solution) -> StepPlan | None:
        """The plan by the traced order, or by a known schedule of the same step on larger tensors.

        A search for a cheaper schedule starts from one that recomputes more than this step needs to. None if
        the known schedule is over the budget: chunks of smaller tensors may leave larger gaps.
        """
        _log.info("the step equals an earlier one on larger tensors: its schedule is used again")
        if self.plain.needed <= self.budget:
            return self._traced
        timeline = simulate(self.step.graph, schedule_of(known))
        if timeline.peak > self.budget:
            return None
        problem = Problem(graph=self.step.graph, budget=self.budget)
        plan = self._plan(Solution.found(problem, timeline, solver="known"), Reserve(size=0))
        if plan.expected > self.budget:
            return None
        unused = self.budget - plan.expected
        if unused <= _SURPLUS * self.budget or plan.solution.overhead <= _UNUSED:
            return plan
        cheaper = self._cheaper(schedule_of(known))
        return cheaper if cheaper is not None and cheaper.solution.cost < plan.solution.cost else plan

    def _cheaper(self, start: Schedule) -> StepPlan | None:
        """The plan that a short search finds from a schedule; None if it is over the budget."""
        reserve = self._first
        graph = replace(self.step.graph, fixed_size=self.step.graph.fixed_size + reserve.size)
        options = replace(self.options, time_limit=_AGAIN_SHARE * self.options.usual_s(graph))
        solution = self._decided(graph, options, start)
        plan = self._plan(solution, reserve) if solution.timeline is not None else None
        return plan if plan is not None and plan.expected <= self.budget else None

    @property
    def _traced(self) -> StepPlan:
        """The plan by the traced order."""
        options = replace(self.options, solver=self.plain.order, cache=False)
        return self._plan(self._decided(self.step.graph, options), Reserve(size=0))

    @property
    def _first(self) -> Reserve:
        """What the traced order needs, or more: recomputation often keeps more small tensors alive."""
        size = self.plain.uncounted
        spare = min(size, int(_SPARE * self.budget)) if self.plain.needed > self.budget else 0
        return Reserve(size=size + spare)

    def _more(self, reserve: Reserve, plan: StepPlan, attempt: int) -> Reserve:
        """A larger reserve, after a plan that is over the budget."""
        # Also the bytes that the schedule left free: else the same schedule would be found again.
        free = self.budget - (plan.solution.peak or 0)
        size = reserve.size + free + attempt * (plan.expected - self.budget)
        return replace(reserve, size=size, over=reserve.size, start=plan.solution.schedule)

    def _less(self, reserve: Reserve, attempt: int) -> Reserve | None:
        """A smaller reserve, after no schedule was found; None if that can't help."""
        if attempt == 1 and reserve.size:
            return replace(reserve, size=0)
        if reserve.size and reserve.least is None and self.plain.needed > self.budget:
            # Fewer bytes must do: reserve those that the schedule of least known peak leaves free.
            least = self._least(self.options.time_limit)
            return replace(reserve, size=self.budget - (least.solution.peak or 0), least=least)
        return None

    def _refined(self, plan: StepPlan, reserve: Reserve) -> StepPlan:
        """A plan that leaves fewer bytes unused: its reserve lies between ``over`` and ``size``."""
        for _ in range(_REFINEMENTS):
            usable = min(reserve.size - reserve.over, self.budget - plan.expected)
            if usable <= _UNUSED * self.budget or plan.solution.cost <= self.step.graph.ideal_cost:
                break
            middle = (reserve.size + reserve.over) // 2
            tried = replace(reserve, size=middle, start=schedule_of(plan.solution))
            solution = self._solve(tried)
            found = plan if solution.timeline is None else self._plan(solution, tried)
            if found.expected <= self.budget and found.solution.cost < plan.solution.cost:
                plan, reserve = found, tried
            else:
                reserve = replace(reserve, over=middle)
        return plan

    def _otherwise(self, solution: Solution, reserve: Reserve) -> StepPlan:
        """The traced order, or the schedule of least known peak, if the budget allows one of them.

        With bytes reserved every schedule found is over the budget; these may meet it.
        """
        if reserve.size and self.plain.needed <= self.budget:
            return self._traced
        least = reserve.least or self._least(self.options.time_limit * (1 if reserve.size else _ADVICE_SHARE))
        if (reserve.size or self.options.solver == "auto") and least.needed <= self.budget:
            problem = replace(least.solution.problem, budget=self.budget)
            return replace(least, solution=replace(least.solution, problem=problem))
        raise self._infeasible(solution, reserve, min(least.needed, self.plain.needed))

    def _least(self, seconds: float) -> StepPlan:
        """The plan that needs the fewest bytes, of the schedules of least peak that were found up to now."""
        self.options.report("finding the least budget")
        nothing, graph = Reserve(size=0), self.step.graph
        plan = self._plan(minimum_budget(graph, time_limit=seconds), nothing)
        found = schedule_of(plan.solution)
        lowest = _lowest.remember((graph.digest, self.step.counts), plan.needed, found)
        if lowest is found:
            return plan
        problem = replace(plan.solution.problem, budget=plan.needed)
        return self._plan(Solution.found(problem, lowest, solver="known"), nothing)

    def _solve(self, reserve: Reserve) -> Solution:
        """The answer of the solver with bytes reserved."""
        graph = replace(self.step.graph, fixed_size=self.step.graph.fixed_size + reserve.size)
        for seconds, start in self._tries(graph, reserve):
            solution = self._decided(graph, replace(self.options, time_limit=seconds), start)
            if solution.timeline is not None or solution.status is Status.INFEASIBLE:
                break
        return solution

    def _tries(self, graph: DFGraph, reserve: Reserve) -> Iterator[tuple[float, Schedule | None]]:
        """Seconds for the solver and the schedule to start from, for one try after the other.

        The solver gets little time if it can repair a schedule, then the usual time, then all of it, unless
        fewer bytes are reserved next.
        """
        usual_s = self.options.usual_s(graph)
        if reserve.start is not None:
            yield _AGAIN_SHARE * usual_s, reserve.start
        yield usual_s, None
        fewer_next = reserve.start is None and reserve.size and reserve.size == self._first.size
        if not fewer_next and usual_s < self.options.time_limit:
            yield self.options.time_limit, None

    def _decided(self, graph: DFGraph, options: Options, start: Schedule | None = None) -> Solution:
        return decide(graph, self.budget, options, plain=self.plain.order, start=start, throw=False)

    def _plan(self, solution: Solution, reserve: Reserve) -> StepPlan:
        """The plan of a solution: its program, and the use of each byte."""
        self.options.report("counting bytes")
        schedule = self.step.ordered.lean(schedule_of(solution))
        program, expected = self.step.emit(schedule)
        return StepPlan(
            step=self.step,
            solution=solution,
            schedule=schedule,
            account=self.step.account(reserve.size),
            program=program,
            plain_peak=self.plain.peak,
            expected=expected,
        )

    def _infeasible(self, solution: Solution, reserve: Reserve, minimum: int) -> InfeasibleBudgetError:
        """The error; a proof that holds with bytes reserved does not hold without them."""
        graph = self.step.graph
        size, op = floor(graph)
        error = InfeasibleBudgetError(
            budget=self.budget,
            minimum=minimum,
            floor=size,
            bottleneck=graph.ops[op].name if op is not None else None,
            proved=solution.status is Status.INFEASIBLE
            and solution.problem.graph.fixed_size == graph.fixed_size,
            reason=_REASONS[self.step.counts] if reserve.size else solution.origin.get("reason", ""),
            whole=self.plain.peak,
        )
        return self.step.account().explained(error, graph)


def _traced_order(step: PricedStep) -> PlainOrder:
    """The traced order; the graph's own, if an update has to wait for an op that was traced after it."""
    graph = step.graph
    traced = PlainOrder(order=tuple(sorted(range(graph.n_ops), key=step.ordered.order.__getitem__)))
    try:
        traced.peak(graph)
    except InvalidScheduleError:
        return PlainOrder(order=tuple(range(graph.n_ops)))
    return traced

"""One budget for all calls of a step: their schedules, decided together once a step has shown its calls.

Between forward and backward pass of call i run the calls i + 1 … k, which take Wᵢ bytes, and leave Gᵢ bytes
of gradients. So call i is planned with Wᵢ as the workspace of its boundary and Gᵢ kept from there on:

    W_k, G_k = the loss      Wᵢ₋₁ = peakᵢ − baseᵢ      Gᵢ₋₁ = gradients of the parameters of calls i … k
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from checkmate import DFGraph, Problem, Schedule, Solution, Timeline, keep_all_peak, simulate
from checkmate.framework import decide, schedule_of
from checkmate.units import format_bytes, parse_budget
from checkmate_torch.distributed.ranks import Ranks, decided_together
from checkmate_torch.planning.decide import LEAST_S, least_memory
from checkmate_torch.planning.nested_calls.calls import Decision, Nest, PlannedCall
from checkmate_torch.planning.options import Options, Warnings

__all__ = ["decide_together"]

_LEVELS = (1.0, 0.5, 0.25, 0.1, 0.0)
"""Room of later calls that is tried, from the least that they need (0) to that without recomputation (1)."""
_OF_MANY = 0.25
"""Share of the seconds to look for a least peak that one of several calls gets."""
_Decide: TypeAlias = Callable[[DFGraph, int], Timeline]
"""Makes the schedule of a call: of its graph, charged with the other calls, and of its place in the nest."""
_Solve: TypeAlias = Callable[[DFGraph, int], Solution]
"""Solves a graph within a budget; the solution may have no schedule."""


def decide_together(nest: Nest, options: Options, warnings: Warnings) -> None:
    """Decide the schedules of a step's calls together, and note them with the sessions of the calls.

    Args:
        nest: the calls.
        options: how to plan. A share is one of the peak of all calls.
        warnings: get one if no schedules are within the budget; those of the least peak are noted.
    """
    budget = min(call.budget for call in nest.calls)
    if options.is_share:
        budget = parse_budget(options.budget, _joined(nest, _keeping_all).peak)
    n_calls = len(nest.calls)
    each = replace(options, time_limit=max(LEAST_S, options.time_limit / (2 * n_calls)))

    def solve_call(graph: DFGraph, room: int) -> Solution:
        problem = Problem(graph=graph, budget=room, time_limit=each.time_limit, fixed_order=True)
        solve = partial(decide, graph, options=each, fixed_order=True, throw=False)
        return decided_together(Ranks.of(options.process_group), problem, solve)

    decisions = _within(nest, budget, solve_call)
    if decisions is None:
        decisions, least = _least(nest)
        warnings.once(
            "together",
            f"no schedules for the {n_calls} calls of a step together stay within {format_bytes(budget)}, "
            "and the step may exceed that; the least budget known to work for them is "
            f"{least} bytes ({format_bytes(least)})",
        )
    for decision in decisions:
        home = decision.call.home()
        if home is not None:
            home.decided.append(replace(decision, budget=budget))
            home.renewed |= decision.schedule is not decision.call.schedule


def _within(nest: Nest, budget: int, solve: _Solve) -> Sequence[Decision] | None:
    """Schedules that together stay within a budget; None if none were found.

    Where the later calls have less room, they are slower, and the earlier ones have more.
    """
    if not any(call.provisional for call in nest.calls):
        present = _present(nest)
        if present.peak <= budget:
            return present.decisions
    best: _Joined | None = None
    for level in _LEVELS:
        try:
            found = _joined(nest, partial(_solved, budget=budget, solve=solve, level=level))
        except _NoSchedule:
            if best is not None:
                break
            continue
        if best is not None and found.cost >= best.cost:
            break
        best = found
    return None if best is None else best.decisions


def _least(nest: Nest) -> tuple[Sequence[Decision], int]:
    """Schedules of the least known peak, and that peak in bytes; none where the present ones are as good."""
    found, present = _joined(nest, _least_memory), _present(nest)
    return found.decisions if found.peak < present.peak else (), min(found.peak, present.peak)


def _present(nest: Nest) -> _Joined:
    return _joined(nest, lambda graph, k: simulate(graph, nest.calls[k].schedule))


def _keeping_all(graph: DFGraph, _: int) -> Timeline:
    return simulate(graph, Schedule.from_sequence(graph, range(graph.n_ops)))


def _least_memory(graph: DFGraph, _: int) -> Timeline:
    return simulate(graph, schedule_of(least_memory(graph, _OF_MANY * LEAST_S)))


class _NoSchedule(Exception):  # noqa: N818 - caught right here
    """A call has no schedule in its room."""


def _solved(graph: DFGraph, k: int, *, budget: int, solve: _Solve, level: float) -> Timeline:
    """The best schedule of call k; later calls get a share ``level`` of the room that they can use."""
    room = budget
    if k:
        least = least_memory(graph, _OF_MANY * LEAST_S).problem.budget
        room = min(budget, int(least + level * (keep_all_peak(graph) - least)))
    timeline = solve(graph, room).timeline
    if timeline is None:
        raise _NoSchedule
    return timeline


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Joined:
    """Decisions for the calls of a nest, with the peak in bytes and the cost of the step."""

    decisions: Sequence[Decision]
    peak: int
    cost: float


def _joined(nest: Nest, decide_call: _Decide) -> _Joined:
    """Decide the last call first: what it needs is workspace and gradients for the calls before it."""
    decisions: list[Decision] = []
    trained_later: dict[int, int] = {}
    peak, cost, workspace = 0, 0.0, 0
    for k, call in reversed(list(enumerate(nest.calls))):
        present = Decision(
            call=call,
            schedule=call.schedule,
            besides=_besides(call, nest.calls),
            workspace=workspace,
            gradients=sum(trained_later.values()),
            is_inner=call in nest.inner and k < len(nest.calls) - 1,
        )
        graph = present.charged(call.graph)
        timeline = decide_call(graph, k)
        decisions.append(replace(present, schedule=timeline.schedule))
        peak, cost, workspace = timeline.peak, cost + timeline.cost, timeline.peak - graph.base_size
        trained_later |= call.trained
    return _Joined(decisions=decisions[::-1], peak=peak, cost=cost)


def _besides(call: PlannedCall, calls: Sequence[PlannedCall]) -> int:
    """Bytes that the other calls hold throughout: batches, other models, parameters of unknown models."""
    batches = sum(each.batch for each in calls if each is not call)
    owned = {each.home: each.owned or 0 for each in calls}
    models = sum(size for home, size in owned.items() if home != call.home)
    trained = {key: size for each in calls if each.owned is None for key, size in each.trained.items()}
    return batches + models + sum(size for key, size in trained.items() if key not in call.trained)

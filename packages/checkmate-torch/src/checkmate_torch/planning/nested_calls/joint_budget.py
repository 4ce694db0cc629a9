"""One budget for all calls of a step: a schedule for each call, decided together once their steps are known.

Between forward and backward pass of call i run the calls i + 1 … k, which take Wᵢ bytes, and leave Gᵢ bytes
of gradients. So call i is charged with Wᵢ as the workspace of its boundary and Gᵢ kept from there on:

    W_k, G_k = the loss      Wᵢ₋₁ = peakᵢ − baseᵢ      Gᵢ₋₁ = gradients of the parameters of calls i … k

For each call a few schedules are found, between the least peak and no recomputation. We then choose one for
each call, so that the peak of every nest is within the budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from checkmate import DFGraph, Problem, Schedule, keep_all_peak, simulate
from checkmate.framework import decide, schedule_of
from checkmate.units import format_bytes, parse_budget
from checkmate_torch.distributed.ranks import Ranks, decided_together
from checkmate_torch.planning.decide import Whole, least_memory
from checkmate_torch.planning.nested_calls.calls import Decision, Nest, NestedCalls, PlannedCall
from checkmate_torch.planning.options import Options

__all__ = ["decide_together"]

_LEVELS = (0.5, 0.25, 0.1)
"""Room of a call that is tried, from the least that it needs (0) to that without recomputation (1)."""
_SHORTEST_S = 0.1
"""Seconds that a solver gets at least for one schedule of one call."""
_MOST_TIMES = 4
"""How often the calls of a session are decided; then other steps follow the plans that there are."""
_TOO_LITTLE = (
    "no schedules for the %d calls of a step together stay within %s, and the step may exceed that; the "
    "least budget known to work for them is %s"
)
_GUESS = ". A rule of thumb charges %s for the loss outside of the model: pass loss= or loss_bytes="
_CHANGING = (
    "the number or the order of the calls of a step changes again and again: steps that need more than those "
    "so far may exceed the budget of %s. Begin with a step of the most calls, or compute all in one call"
)
_Choice: TypeAlias = Mapping[PlannedCall, Schedule]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Joined:
    """The calls of some nests under a choice of schedules.

    Attributes:
        choice: the schedule of each call.
        decisions: for each call, as the choice makes it; of its places in nests, the one of the highest peak.
        peaks: of each call in that place, in bytes.
        peak: the highest peak of a nest, in bytes.
        cost: of all nests.
    """

    choice: _Choice
    decisions: Mapping[PlannedCall, Decision]
    peaks: Mapping[PlannedCall, int]
    peak: int
    cost: float


def decide_together(home: NestedCalls, nests: Sequence[Nest], options: Options, whole: Whole) -> None:
    """Decide a schedule for each call of some nests, and note the schedules with their calls.

    Args:
        home: the session's calls that ask for it; gets a warning where the budget can't be kept.
        nests: all that share calls.
        options: how to plan. A share is one of the highest peak of a nest. The time limit is for all calls.
        whole: what a budget may be a share of.
    """
    calls = list(dict.fromkeys(call for nest in nests for call in nest.calls))
    joint = _Joint(nests)
    plain = joint.joined({call: _keeping_all(call.graph) for call in calls})
    budget = min(call.budget for call in calls)
    if options.is_share:
        budget = parse_budget(options.budget, whole.grown(plain.peak))
    found = _present(joint, calls, budget)
    if found is None and home.n_decided == _MOST_TIMES:
        home.warnings.once("changing", _CHANGING % format_bytes(budget))
        return
    if found is None:
        home.n_decided += 1
        found = plain if plain.peak <= budget else _best(joint, calls, budget, options)
        if found.peak > budget:
            home.warnings.once("together", _too_little(nests, found, budget))
    _note(found, budget, plain.peak)


def _too_little(nests: Sequence[Nest], found: _Joined, budget: int) -> str:
    """Why the budget can't be kept, and the way out."""
    n_calls = max(len(nest.calls) for nest in nests)
    least = f"{found.peak} bytes ({format_bytes(found.peak)})"
    guess = sum(call.loss_guess for call, each in found.decisions.items() if not each.is_inner)
    text = _TOO_LITTLE % (n_calls, format_bytes(budget), least)
    return text + (_GUESS % format_bytes(guess) if guess else "")


def _note(found: _Joined, budget: int, plain_peak: int) -> None:
    """Note what was decided with the calls, and with their sessions which plans are to be made again."""
    for call, decision in found.decisions.items():
        home = call.home()
        if home is not None:
            home.renewed |= call.provisional or decision.schedule != call.schedule
        call.decision = replace(decision, budget=budget, plain_peak=plain_peak)
        call.provisional = False


def _present(joint: _Joint, calls: Sequence[PlannedCall], budget: int) -> _Joined | None:
    """The schedules that the calls follow now, if they will do."""
    if any(call.provisional for call in calls):
        return None
    found = joint.joined({call: call.schedule for call in calls})
    return found if found.peak <= budget else None


def _best(joint: _Joint, calls: Sequence[PlannedCall], budget: int, options: Options) -> _Joined:
    """The cheapest choice found within the budget; if there is none, one of the least peak found."""
    seconds = max(_SHORTEST_S, options.time_limit / ((len(_LEVELS) + 3) * len(calls)))
    each = replace(options, time_limit=seconds)

    def solve(graph: DFGraph, room: int) -> Schedule | None:
        problem = Problem(graph=graph, budget=room, time_limit=seconds, fixed_order=True)
        run = partial(decide, graph, options=each, fixed_order=True, throw=False)
        return decided_together(Ranks.of(options.process_group), problem, run).schedule

    found = _least(joint, calls, seconds)
    schedules: dict[PlannedCall, list[Schedule]] = {}
    for call in calls:
        graph = call.charged(found.decisions[call])
        least, most = found.peaks[call], keep_all_peak(graph)
        rooms = [int(least + level * (most - least)) for level in _LEVELS]
        solved = [solve(graph, room) for room in rooms if room <= budget]
        schedules[call] = [_keeping_all(call.graph), *(s for s in solved if s is not None)]
    found = _relaxed(joint, found, schedules, budget)
    for call in sorted(calls, key=lambda call: -found.peaks[call]):  # use up what is left of the budget
        graph = call.charged(found.decisions[call])
        schedule = solve(graph, found.peaks[call] + max(0, budget - found.peak))
        if schedule is not None:
            found = _relaxed(joint, found, {call: [schedule]}, budget)
    return found


def _relaxed(
    joint: _Joint,
    found: _Joined,
    schedules: Mapping[PlannedCall, Sequence[Schedule]],
    budget: int,
) -> _Joined:
    """Replace the schedule of one call after another by the one that saves most within the budget."""
    while True:
        tried = [
            joint.joined({**found.choice, call: schedule})
            for call, others in schedules.items()
            for schedule in others
            if schedule is not found.choice[call]
        ]
        better = [each for each in tried if each.peak <= budget and each.cost < found.cost]
        if not better:
            return found
        found = min(better, key=lambda each: each.cost)


def _least(joint: _Joint, calls: Sequence[PlannedCall], seconds: float) -> _Joined:
    """Schedules of the least peak known: of each call alone, then with what other calls need meanwhile."""
    found = joint.joined({call: call.schedule for call in calls})
    for _ in range(2):
        charged = {call: call.charged(found.decisions[call]) for call in calls}
        least = {call: schedule_of(least_memory(graph, seconds)) for call, graph in charged.items()}
        found = min(found, joint.joined(least), key=lambda each: each.peak)
    return found


def _keeping_all(graph: DFGraph) -> Schedule:
    return Schedule.from_sequence(graph, range(graph.n_ops))


class _Joint:
    """Nests whose calls are simulated under choices of schedules; equal simulations run once."""

    def __init__(self, nests: Sequence[Nest]) -> None:
        self.nests = nests
        self._known: dict[tuple[int, Decision], tuple[int, float, int]] = {}

    def joined(self, choice: _Choice) -> _Joined:
        """Simulate the calls of each nest from the last to the first, as workspace for those before it."""
        decisions: dict[PlannedCall, Decision] = {}
        peaks: dict[PlannedCall, int] = {}
        highest, cost = 0, 0.0
        for nest in self.nests:
            trained_later: dict[int, int] = {}
            workspace = 0
            runs = zip(nest.calls, nest.values, nest.batches, nest.inner, strict=True)
            for call, values, batches, is_inner in reversed([*runs]):
                decision = Decision(
                    schedule=choice[call],
                    values=values,
                    besides=batches + _besides(call, nest.calls),
                    workspace=workspace,
                    gradients=sum(trained_later.values()),
                    is_inner=is_inner,
                    n_calls=len(nest.calls),
                )
                peak, seconds, base = self._simulated(call, decision)
                if peak > peaks.get(call, 0):
                    decisions[call], peaks[call] = decision, peak
                highest, cost, workspace = max(highest, peak), cost + seconds, peak - base
                trained_later |= call.trained
        return _Joined(choice=choice, decisions=decisions, peaks=peaks, peak=highest, cost=cost)

    def _simulated(self, call: PlannedCall, decision: Decision) -> tuple[int, float, int]:
        """Peak and cost of a call, and the bytes that it is charged with throughout."""
        key = call.number, decision
        if key not in self._known:
            graph = call.charged(decision)
            timeline = simulate(graph, decision.schedule)
            self._known[key] = timeline.peak, timeline.cost, graph.base_size
        return self._known[key]


def _besides(call: PlannedCall, calls: Sequence[PlannedCall]) -> int:
    """Bytes that the other calls hold throughout besides batches: other models, parameters of unknown models.

    And states of optimizers that its graph does not count.
    """
    owned = {each.home: (each.owned or 0) + each.optimizer_bytes + each.later_state for each in calls}
    models = sum(size for home, size in owned.items() if home != call.home)
    trained = {key: size for each in calls if each.owned is None for key, size in each.trained.items()}
    further = sum(size for key, size in trained.items() if key not in call.trained)
    return models + further + call.later_state

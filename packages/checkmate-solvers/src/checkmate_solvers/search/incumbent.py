"""The state of one solve: the cheapest judged schedule so far, the best proved bound, and who gave them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from checkmate import Problem, Progress, Schedule, Solution, Timeline, floor, keep_all_peak, simulate
from checkmate.analysis import needed_ops
from checkmate.heuristics import Weights, evicting_sequence, pruned
from checkmate.solving import Deadline, judging_s, planned_sequence
from checkmate_solvers.machine.code import at_hand, is_awaited
from checkmate_solvers.machine.repair import Repair
from checkmate_solvers.moments.moment import Mask
from checkmate_solvers.worker import Worker

__all__ = ["Search"]

_GOOD_ENOUGH, _CLOSED = 5e-4, 1e-6
"""Relative gap at which a search stops, and at which there is nothing to polish."""
_WORSE = 1.2
"""How much dearer than the incumbent a repaired sequence may be before it is pruned."""
_REPAIRS = (Weights(1, 1, 1, stale=True), Weights(1, 1, 1), Weights(1, 0, 1, stale=True), Weights(1, 1, 0.5))
_SMALL = 100
"""Up to this many ops eviction repairs plans, which is quick enough: no machine code is loaded for them."""
_PRUNING, _EVICTION = 0.1, 0.2
"""Of the time that is left: what pruning and each eviction may use without machine code in larger graphs."""
_DECODING = 8
"""Repairing a plan or a schedule takes about as long as judging this many schedules."""
_LEAST_S = 0.1
_PAUSE_S = 0.1


class Search:
    """Collects schedules and bounds for one problem, and reports each improvement.

    Attributes:
        problem: the question.
        base: cost of running every needed op once.
        cost: of the cheapest schedule so far; infinite if there is none.
        bound: proved lower bound; infinite if the problem is proved infeasible.
        deadline: when the time is up.
        patient: when the time is up for a search for any schedule at all, also on a busy machine.
    """

    def __init__(self, problem: Problem) -> None:
        """Start the clock."""
        self.problem = problem
        self.cost = math.inf
        self._needed = needed_ops(problem.graph)
        costs = problem.graph.costs[self._needed]
        self.base = self.bound = math.fsum(costs)
        self._enough = _GOOD_ENOUGH
        whole = all(float(c).is_integer() for c in costs)
        self._step = math.gcd(*(int(c) for c in costs)) if whole and self.base < 2**52 else 0
        self._best: Timeline | None = None
        self._found: dict[str, tuple[float, list[int]]] = {}
        self._origin = {"bound": "every op once"}
        self.deadline = Deadline(problem.time_limit)
        self.patient = Deadline(problem.time_limit, patient=True)
        self._started = time.monotonic()
        self._missed_machine_code = False
        self._lowest: Timeline | None = None
        self._worker: Worker | None = None
        self._repair = Repair(problem.graph, fixed_order=problem.fixed_order, seed=problem.seed)

    @property
    def small(self) -> bool:
        """Whether steps without machine code are quick enough."""
        return self.problem.graph.n_ops <= _SMALL

    @property
    def found_by(self) -> str:
        """The step that found the cheapest schedule so far; empty if there is none."""
        return self._origin.get("schedule", "")

    @property
    def sequence(self) -> list[int] | None:
        """The ops of the cheapest schedule so far, with repeats."""
        return None if self._best is None else self._best.schedule.sequence.tolist()

    @property
    def seeds(self) -> list[list[int]]:
        """What the steps found within the budget, the best of each, cheapest first."""
        return [sequence for _, sequence in sorted(self._found.values())]

    @property
    def clock(self) -> Deadline:
        """The patient deadline while no schedule is known, then the plain one."""
        return self.patient if self._best is None else self.deadline

    @property
    def left_s(self) -> float:
        """Seconds until the time limit."""
        return self.deadline.left_s

    @property
    def done(self) -> bool:
        """Whether the gap is closed or the time is over."""
        self.hear()
        return self.gap <= self._enough or math.isinf(self.bound) or self.left_s <= 0

    @property
    def gap(self) -> float:
        """Relative distance of cost and bound; infinite while there is no schedule."""
        if math.isinf(self.cost):
            return math.inf
        return (self.cost - self.bound) / self.cost if self.cost > 0 else 0.0

    def has_time_to_judge(self, schedules: float) -> bool:
        """Whether there is time for a step that takes as long as judging this many schedules."""
        return self.clock.left_s > schedules * judging_s(self.problem.graph)

    def start(self) -> bool:
        """The two easy ends: whether the budget is below the floor, or has room for everything."""
        if self.problem.budget < floor(self.problem.graph).size:
            self.prove(math.inf, "floor")
            return True
        if not self._needed.all() or keep_all_peak(self.problem.graph) <= self.problem.budget:
            self.offer(np.flatnonzero(self._needed).tolist(), "keep-all")
        return self.done

    def offer(self, sequence: Sequence[int] | None, origin: str) -> bool:
        """Judge a sequence of ops, less what it can do without; keep it if it fits and is the cheapest.

        Returns:
            Whether it is within the budget.
        """
        problem = self.problem
        if sequence is None:
            return False
        timeline = simulate(problem.graph, Schedule.from_sequence(problem.graph, sequence))
        if timeline.peak > problem.budget:
            return False
        if not self.has_time_to_judge(_DECODING):
            self.keep_if_better(timeline, origin)
            return True
        if self.has_machine_code():
            return self.repair(sequence, origin)
        if not self.small:
            self.keep_if_better(timeline, origin)
        until = self.deadline if self.small else self.deadline.part(_PRUNING)
        for fixed_order in {problem.fixed_order, True}:
            lean = pruned(problem.graph, sequence, problem.budget, fixed_order=fixed_order, deadline=until)
            self.judge(lean, origin)
        return True

    def repair(self, sequence: Sequence[int], origin: str) -> bool:
        """Bring a sequence within the budget by machine code, take away what it can do without, and judge it.

        Returns:
            Whether that succeeded.
        """
        fitted = self._repair.fitted(sequence, self.problem.budget, deadline=self.deadline)
        if fitted is None:
            return False
        self.judge(fitted, origin)
        return True

    def has_machine_code(self, *, even_if_small: bool = False) -> bool:
        """Whether the machine code of the local search is loaded, or can be in the time that is left.

        Args:
            even_if_small: load it for small graphs, too; else they are said to have none.
        """
        if self.small and not even_if_small:
            return False
        found = at_hand(self.clock.left_s) is not None
        self._missed_machine_code |= not found
        return found

    def await_machine_code(self) -> bool:
        """Wait for the machine code while it is being compiled and time is left; whether it is there."""
        while not (found := self.has_machine_code(even_if_small=True)) and not self.done and is_awaited():
            time.sleep(_PAUSE_S)
        return found

    def judge(self, sequence: Sequence[int], origin: str) -> None:
        """Keep a sequence of ops as it is if it is what was asked for and the cheapest."""
        graph = self.problem.graph
        self.keep_if_better(simulate(graph, Schedule.from_sequence(graph, sequence)), origin)

    def keep_if_better(self, timeline: Timeline, origin: str, *, seed: bool = True) -> None:
        """Keep a schedule that the simulator has replayed, if it is what was asked for and the cheapest.

        Args:
            timeline: of the schedule.
            origin: the step that found it.
            seed: whether it is one of the :attr:`seeds`, too.
        """
        if self.problem.fixed_order and not timeline.schedule.keeps_base_order:
            return
        if timeline.peak > self.problem.budget:
            if self._lowest is None or timeline.peak < self._lowest.peak:
                self._lowest = timeline
            return
        if seed and timeline.cost < self._found.get(origin, (math.inf, []))[0]:
            self._found[origin] = timeline.cost, timeline.schedule.sequence.tolist()
        if timeline.cost < self.cost:
            self.cost, self._best = timeline.cost, timeline
            self._report("schedule", origin)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let an interrupt (Ctrl-C) end what stands inside, and no more than that if there is a schedule."""
        try:
            yield
        except KeyboardInterrupt:
            if self._best is None:
                raise
            self._origin["interrupted"] = "Ctrl-C"

    @contextmanager
    def polished(self) -> Iterator[None]:
        """For a while, let no gap be good enough that is not closed."""
        self._enough = _CLOSED
        try:
            yield
        finally:
            self._enough = _GOOD_ENOUGH

    @contextmanager
    def within(self, share: float) -> Iterator[None]:
        """Shorten the deadline to ``share`` of the remaining time inside this block."""
        end = self.deadline
        self.deadline = end.part(share)
        try:
            yield
        finally:
            self.deadline = end

    @contextmanager
    def helped(self, without: tuple[str, ...] = ()) -> Iterator[None]:
        """While this lasts, a process of its own proves bounds, if the problem allows two threads.

        Args:
            without: the steps of ``auto`` that it leaves out.
        """
        if self.problem.threads > 1:
            self._worker = Worker(replace(self.problem, time_limit=max(self.left_s, _LEAST_S)), without)
        try:
            yield
        finally:
            if self._worker is not None:
                self._worker.stop()
                self._worker = None

    def hear(self, wait_s: float = 0.0) -> bool:
        """Take over what that process has found; wait for it that long if it has found nothing new.

        Returns:
            Whether there may be more to come.
        """
        if self._worker is None:
            return False
        for finding in self._worker.findings(min(wait_s, max(self.left_s, 0.0))):
            if finding.sequence is not None:
                self.judge(finding.sequence, finding.origin)
            self._raise_bound(finding.bound, finding.origin)
        return self._worker.running

    @property
    def proved_elsewhere(self) -> bool:
        """Whether that process has proved all that it can."""
        return self._worker is not None and self._worker.finished

    def note(self, step: str) -> None:
        """Report what is being done, without anything new."""
        self._tell(step)

    def decode(self, plan: Mapping[int, Mask], origin: str) -> list[int]:
        """Offer what a plan implies: followed to the letter and, where that does not fit, repaired.

        Returns:
            The sequence that follows it to the letter, needed ops only, for whoever wants to know where it is
            too large.
        """
        graph, budget = self.problem.graph, self.problem.budget
        literal = [v for v in planned_sequence(graph, plan) if self._needed[v]]
        if not self.has_time_to_judge(_DECODING):
            return literal
        if self.has_machine_code():
            self.repair(literal, origin)
        elif not self.offer(literal, origin):
            for weights in _REPAIRS:
                ceiling = _WORSE * self.cost
                until = self.deadline if self.small else self.deadline.part(_EVICTION)
                repaired = evicting_sequence(graph, budget, weights, plan, ceiling=ceiling, deadline=until)
                self.offer(repaired, f"{origin}, repaired")
                if self.done:
                    break
        return literal

    def prove(self, recompute: float, origin: str) -> None:
        """Raise the bound: every schedule costs at least this much more than running each needed op once."""
        bound = self.base + recompute
        if self._step and math.isfinite(bound):
            bound = float(self._step * math.ceil(bound / self._step))
        self._raise_bound(bound, origin)

    def solution(self) -> Solution:
        """What we know now."""
        if self._best is not None:
            if self._missed_machine_code and self.gap > _GOOD_ENOUGH:
                self._origin["provisional"] = (
                    "without the local search, which was not compiled or loaded in time"
                )
            return Solution.found(self.problem, self._best, bound=self.bound, origin=self._origin)
        if math.isinf(self.bound):
            return Solution.infeasible(self.problem)
        lowest = self._lowest.schedule if self._lowest is not None else None
        return Solution.unknown(self.problem, bound=self.bound, lowest=lowest)

    def overflow(self, sequence: Sequence[int], known: Sequence[int]) -> int | None:
        """The op before or in whose first run a sequence of needed ops is most over budget.

        None if it is over budget nowhere but at ``known`` ops.
        """
        graph = self.problem.graph
        timeline = simulate(graph, Schedule.from_sequence(graph, sequence))
        memory = timeline.memory[timeline.schedule.codes >= 0]
        first = {v: i for i, v in reversed(list(enumerate(sequence)))}
        worst: tuple[int, int] | None = None
        upcoming = graph.n_ops
        for i in range(len(sequence) - 1, -1, -1):
            if first[sequence[i]] == i:
                upcoming = sequence[i]
            size = int(memory[i])
            if size > self.problem.budget and upcoming < graph.n_ops and upcoming not in known:
                worst = max(worst or (0, 0), (size, upcoming))
        return worst[1] if worst else None

    def _raise_bound(self, bound: float, origin: str) -> None:
        if bound > self.bound:
            self.bound = bound
            self._report("bound", origin)

    def _report(self, what: str, origin: str) -> None:
        self._origin[what] = origin
        self._tell(origin)

    def _tell(self, step: str) -> None:
        if self.problem.on_progress is not None:
            incumbent = self.cost if self._best is not None else None
            seconds = time.monotonic() - self._started
            self.problem.on_progress(Progress(incumbent, min(self.bound, self.cost), seconds, step))

"""Executors: each check finds its fault. The right one is that of the tape, a framework of NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count, pairwise
from typing import Any

import numpy as np
import pytest
from checkmate_tape import TapeExecutor, Traced, Trial
from numpy_tape import KINDS, Call, network

from checkmate import Free, Schedule
from checkmate.testing import ExecutorConformance, FrontendConformance

*_, TOTAL, KEY = network().inputs
KEYS = np.arange(1, 1000).reshape(-1, 1)
ZERO = np.zeros(())


class FreesTooLate(TapeExecutor):
    """Frees a tensor after the next op, unless that makes it."""

    def run(self, traced: Traced, schedule: Schedule, watch: Callable[..., object] = bool) -> list[Any]:
        steps, late = [], []
        for step in schedule:
            if isinstance(step, Free):
                late.append(step)
                continue
            makes = traced.calls[step.op].makes
            before = [free for free in late if free.tensor in makes]
            steps += [*before, step, *(free for free in late if free not in before)]
            late = []
        return super().run(traced, Schedule.of(steps + late), watch)


class ForgetsAFree(TapeExecutor):
    """Leaves the last free out."""

    def run(self, traced: Traced, schedule: Schedule, watch: Callable[..., object] = bool) -> list[Any]:
        steps = list(schedule)
        if last := max((k for k, step in enumerate(steps) if isinstance(step, Free)), default=0):
            del steps[last]
        return super().run(traced, Schedule.of(steps), watch)


class SkipsAnOp(TapeExecutor):
    """Does not compute what is resident."""

    def compute(self, call: Call, held: dict[int, Any], watch: Callable[[], object]) -> None:
        if not held.keys() >= set(call.makes):
            super().compute(call, held, watch)


class Counts(TapeExecutor):
    """Right, and counts how often each tensor is made in a step."""

    def run(self, traced: Traced, schedule: Schedule, watch: Callable[..., object] = bool) -> list[Any]:
        self.made = [0] * traced.graph.n_tensors
        return super().run(traced, schedule, watch)

    def compute(self, call: Call, held: dict[int, Any], watch: Callable[[], object]) -> None:
        super().compute(call, held, watch)
        for t in call.makes:
            self.made[t] += 1


class ReadsAStaleCopy(Counts):
    """Reads the first copy of a tensor that was recomputed: the bytes are no longer its own."""

    def compute(self, call: Call, held: dict[int, Any], watch: Callable[[], object]) -> None:
        stale = {t: np.broadcast_to(ZERO, held[t].shape) for t in call.reads if self.made[t] > 1}
        seen = held | stale
        super().compute(call, seen, watch)
        held.update((t, seen[t]) for t in call.makes)


class ForgetsTheRandomState(Counts):
    """Draws other random numbers in each run of an op."""

    def compute(self, call: Call, held: dict[int, Any], watch: Callable[[], object]) -> None:
        key = {KEY: KEYS[self.made[call.makes[0]]]} if call.kind is KINDS["mask"] else {}
        seen = held | key
        super().compute(call, seen, watch)
        held.update((t, seen[t]) for t in call.makes)


class UpdatesAStatisticTwice(Counts):
    """Adds the mean once for each run of the op."""

    def compute(self, call: Call, held: dict[int, Any], watch: Callable[[], object]) -> None:
        super().compute(call, held, watch)
        if TOTAL in call.reads:
            _, mean = call.reads
            for _ in range(self.made[call.makes[0]] - 1):
                held[call.makes[0]] += held[mean]


class AliasesAnOutput(TapeExecutor):
    """Writes the new statistic over the old one."""

    def compute(self, call: Call, held: dict[int, Any], watch: Callable[[], object]) -> None:
        super().compute(call, held, watch)
        if TOTAL in call.reads:
            np.copyto(held[TOTAL], held[call.makes[0]])
            held[call.makes[0]] = held[TOTAL]


class SwapsRecomputations(TapeExecutor):
    """Swaps two recomputations, if none reads what the other makes."""

    def run(self, traced: Traced, schedule: Schedule, watch: Callable[..., object] = bool) -> list[Any]:
        codes, ran = schedule.codes.tolist(), set[int]()
        for k, (one, other) in enumerate(pairwise(codes)):
            again = one != other and min(one, other) >= 0 and {one, other} <= ran
            if again and not set(traced.calls[one].makes) & set(traced.calls[other].reads):
                codes[k : k + 2] = other, one
                break
            ran.add(one)
        return super().run(traced, Schedule(np.array(codes)), watch)


class LeaksATensor(TapeExecutor):
    """Keeps the loss of each step."""

    def __init__(self) -> None:
        self.losses: list[Any] = []

    def run(self, traced: Traced, schedule: Schedule, watch: Callable[..., object] = bool) -> list[Any]:
        results = super().run(traced, schedule, watch)
        self.losses.append(results[0])
        return results


class NeedsMoreWorkspace(TapeExecutor):
    """Takes the workspace of each op twice."""

    def compute(self, call: Call, held: dict[int, Any], watch: Callable[[], object]) -> None:
        more = np.empty_like(held[call.reads[0]]) if call.kind.scratch else None
        super().compute(call, held, watch)
        del more


class KeepsState(TapeExecutor):
    """Scales the results by the number of the call."""

    def bind(self, traced: Traced, schedule: Schedule) -> Callable[..., list[Any]]:
        bound, calls = super().bind(traced, schedule), count(1)

        def scaled(*watch: Callable[..., object]) -> list[Any]:
            k = next(calls)
            return [array * k for array in bound(*watch)]

        return scaled


class AcceptsAnything(TapeExecutor):
    """Binds invalid schedules."""

    def bind(self, traced: Traced, schedule: Schedule) -> Callable[..., list[Any]]:
        return partial(self.run, traced, schedule)


class FailsToBind(TapeExecutor):
    """Needs a device that is missing."""

    def bind(self, traced: Traced, schedule: Schedule) -> Callable[..., list[Any]]:
        raise RuntimeError("no device")


class Case(ExecutorConformance):
    examples = 15
    reorders = True

    def __init__(self, executor: type[TapeExecutor]) -> None:
        self.made, self.trial = executor, Trial("network", partial(network, 1))

    def executor(self) -> TapeExecutor:
        return self.made()


LAWS = {name.removeprefix("test_") for name in dir(ExecutorConformance) if name.startswith("test_")}
RESULTS, AGAIN, ORDER = "results_are_those_of_the_program", "runs_again", "runs_the_schedule"
HELD, PEAKS, LEFT = "holds_what_the_simulator_counts", "needs_no_more_while_an_op_runs", "leaves_nothing"
WRONG: dict[type[TapeExecutor], set[str]] = {
    FreesTooLate: {HELD, PEAKS},
    ForgetsAFree: {HELD, PEAKS},
    SkipsAnOp: {ORDER, PEAKS},
    ReadsAStaleCopy: {RESULTS},
    ForgetsTheRandomState: {RESULTS},
    UpdatesAStatisticTwice: {RESULTS},
    AliasesAnOutput: {RESULTS, AGAIN, HELD},
    SwapsRecomputations: {ORDER, HELD, PEAKS},
    LeaksATensor: {LEFT},
    NeedsMoreWorkspace: {PEAKS},
    KeepsState: {AGAIN},
    AcceptsAnything: {"refuses_what_the_judge_rejects"},
    FailsToBind: LAWS,
}


@pytest.mark.slow
class TestTape(ExecutorConformance):
    executor_name = "tape"


@pytest.mark.slow
class TestTapeFrontend(FrontendConformance):
    frontend_name = "tape"

    def programs(self) -> list[tuple[Any, ...]]:
        return [(network,), (partial(network, 1),)]


def test_a_right_executor_passes_every_check(failing) -> None:
    assert failing(Case(Counts)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("executor", WRONG)
def test_a_wrong_executor_breaks_the_laws_for_its_fault_and_no_other(
    failing, executor: type[TapeExecutor]
) -> None:
    assert set(failing(Case(executor))) == WRONG[executor]

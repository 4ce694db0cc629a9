"""Executors: each check finds its fault. The right one is that of the tape, a framework of NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count, pairwise
from typing import Any

import numpy as np
import pytest
from checkmate_tape import Runner, Tape, Trial, network

from checkmate import Free, Op, Schedule
from checkmate.testing import ExecutorConformance

KEYS = np.arange(1, 1000).reshape(-1, 1)
ZERO = np.zeros(())


class FreesTooLate(Runner):
    """Frees a tensor after the next op, unless that makes it."""

    def run(self, tape: Tape, schedule: Schedule, watch: Callable[..., object] = bool) -> list[Any]:
        steps, waiting = [], []
        for step in schedule:
            steps.append(step)
            if isinstance(step, Free):
                waiting.append(steps.pop())
                continue
            makes = tape.ops[step.op].outputs
            steps[-1:-1] = [free for free in waiting if free.tensor in makes]
            steps += [free for free in waiting if free.tensor not in makes]
            waiting = []
        return super().run(tape, Schedule.of(steps + waiting), watch)


class ForgetsAFree(Runner):
    """Leaves the last free out."""

    def run(self, tape: Tape, schedule: Schedule, watch: Callable[..., object] = bool) -> list[Any]:
        steps = list(schedule)
        if last := max((k for k, step in enumerate(steps) if isinstance(step, Free)), default=0):
            del steps[last]
        return super().run(tape, Schedule.of(steps), watch)


class SkipsAnOp(Runner):
    """Does not compute what is resident."""

    def compute(self, op: Op, held: dict[int, Any], watch: Callable[[], object]) -> None:
        if not held.keys() >= set(op.outputs):
            super().compute(op, held, watch)


class Counts(Runner):
    """Right, and knows how often each tensor was made in this step."""

    def run(self, tape: Tape, schedule: Schedule, watch: Callable[..., object] = bool) -> list[Any]:
        self.made = [0] * tape.graph.n_tensors
        return super().run(tape, schedule, watch)

    def compute(self, op: Op, held: dict[int, Any], watch: Callable[[], object]) -> None:
        super().compute(op, held, watch)
        for t in op.outputs:
            self.made[t] += 1


class ReadsAStaleCopy(Counts):
    """Reads the first copy of a tensor that was recomputed: the bytes are no longer its own."""

    def compute(self, op: Op, held: dict[int, Any], watch: Callable[[], object]) -> None:
        stale = {t: np.broadcast_to(ZERO, held[t].shape) for t in op.inputs if self.made[t] > 1}
        seen = held | stale
        super().compute(op, seen, watch)
        held.update((t, seen[t]) for t in op.outputs)


class ForgetsTheRandomState(Counts):
    """Draws other random numbers in each run of an op."""

    def compute(self, op: Op, held: dict[int, Any], watch: Callable[[], object]) -> None:
        if op.name != "mask":
            return super().compute(op, held, watch)
        _, key = op.inputs
        seen = held | {key: KEYS[self.made[op.outputs[0]]]}
        super().compute(op, seen, watch)
        held.update((t, seen[t]) for t in op.outputs)
        return None


class UpdatesAStatisticTwice(Counts):
    """Adds the mean once for each run of the op."""

    def compute(self, op: Op, held: dict[int, Any], watch: Callable[[], object]) -> None:
        super().compute(op, held, watch)
        if op.name == "add" and not op.backward:
            _, mean = op.inputs
            for _ in range(self.made[op.outputs[0]] - 1):
                held[op.outputs[0]] += held[mean]


class AliasesAnOutput(Runner):
    """Writes the new statistic over the old one."""

    def compute(self, op: Op, held: dict[int, Any], watch: Callable[[], object]) -> None:
        super().compute(op, held, watch)
        if op.name == "add" and not op.backward:
            total, _ = op.inputs
            np.copyto(held[total], held[op.outputs[0]])
            held[op.outputs[0]] = held[total]


class SwapsRecomputations(Runner):
    """Swaps two recomputations, if none reads what the other makes."""

    def run(self, tape: Tape, schedule: Schedule, watch: Callable[..., object] = bool) -> list[Any]:
        codes, ran = schedule.codes.tolist(), set[int]()
        for k, (one, other) in enumerate(pairwise(codes)):
            again = one != other and min(one, other) >= 0 and {one, other} <= ran
            if again and not set(tape.ops[one].outputs) & set(tape.ops[other].inputs):
                codes[k : k + 2] = other, one
                break
            ran.add(one)
        return super().run(tape, Schedule(np.array(codes)), watch)


class LeaksATensor(Runner):
    """Keeps the loss of each step."""

    def __init__(self) -> None:
        self.losses: list[Any] = []

    def run(self, tape: Tape, schedule: Schedule, watch: Callable[..., object] = bool) -> list[Any]:
        results = super().run(tape, schedule, watch)
        self.losses.append(results[0])
        return results


class NeedsMoreWorkspace(Runner):
    """Takes the workspace of each op twice."""

    def compute(self, op: Op, held: dict[int, Any], watch: Callable[[], object]) -> None:
        twice = np.empty(op.workspace, dtype=np.uint8)
        super().compute(op, held, watch)
        del twice


class KeepsState(Runner):
    """Scales the results by the number of the call."""

    def bind(self, traced: Tape, schedule: Schedule) -> Callable[..., list[Any]]:
        bound, calls = super().bind(traced, schedule), count(1)

        def scaled(*watch: Callable[..., object]) -> list[Any]:
            k = next(calls)
            return [array * k for array in bound(*watch)]

        return scaled


class AcceptsAnything(Runner):
    """Binds invalid schedules."""

    def bind(self, traced: Tape, schedule: Schedule) -> Callable[..., list[Any]]:
        return partial(self.run, traced, schedule)


class FailsToBind(Runner):
    """Needs a device that is missing."""

    def bind(self, traced: Tape, schedule: Schedule) -> Callable[..., list[Any]]:
        raise RuntimeError("no device")


class Case(ExecutorConformance):
    examples = 50
    reorders = True

    def __init__(self, executor: type[Runner]) -> None:
        self.made, self.trial = executor, Trial("network", network(2))

    def executor(self) -> Runner:
        return self.made()


LAWS = {name.removeprefix("test_") for name in dir(ExecutorConformance) if name.startswith("test_")}
RESULTS, AGAIN, ORDER = "results_are_those_of_the_program", "runs_again", "runs_the_schedule"
HELD, PEAKS, LEFT = "holds_what_the_simulator_counts", "needs_no_more_while_an_op_runs", "leaves_nothing"
WRONG: dict[type[Runner], set[str]] = {
    FreesTooLate: {HELD, PEAKS},
    ForgetsAFree: {HELD, PEAKS},
    SkipsAnOp: {ORDER, PEAKS},
    ReadsAStaleCopy: {RESULTS},
    ForgetsTheRandomState: {RESULTS},
    UpdatesAStatisticTwice: {RESULTS},
    AliasesAnOutput: {RESULTS, HELD},
    SwapsRecomputations: {ORDER, HELD, PEAKS},
    LeaksATensor: {LEFT},
    NeedsMoreWorkspace: {PEAKS},
    KeepsState: {AGAIN},
    AcceptsAnything: {"refuses_what_the_judge_rejects"},
    FailsToBind: LAWS,
}


class TestTape(ExecutorConformance):
    executor_name = "tape"


def test_a_right_executor_passes_every_check(failing) -> None:
    assert failing(Case(Counts)) == {}


@pytest.mark.parametrize(
    ("executor", "laws"), WRONG.items(), ids=lambda value: getattr(value, "__name__", "")
)
def test_a_wrong_executor_breaks_the_laws_for_its_fault_and_no_other(
    failing, executor: type[Runner], laws: set[str]
) -> None:
    assert set(failing(Case(executor))) == laws

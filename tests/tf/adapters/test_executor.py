"""The executor follows every schedule to the letter, and each wrong one breaks the law for its fault."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import checkmate
import checkmate.tf2
from checkmate import Compute, Free, InvalidScheduleError, Schedule
from checkmate.analysis import late_reads
from checkmate.plugins import Trial
from checkmate.testing import ExecutorConformance
from checkmate.testing.conformance import harness
from checkmate_tf.adapters.executor import Executor
from checkmate_tf.adapters.observe import sees_every_buffer
from checkmate_tf.adapters.trials import TRIALS, FunctionTrial
from checkmate_tf.api.bind import BoundStep, TracedFunction, bind
from checkmate_tf.api.function import PlannedFunction
from checkmate_tf.planning.options import Options
from checkmate_tf.running.program import Copy, Program, Value
from checkmate_tf.tracing.needs import SMALL


class TestTf(ExecutorConformance):
    executor_name = "tf"
    examples = 1  # beside those of the heuristics


class Wrong(Executor):
    """Runs another program than that of the schedule."""

    def bind(self, traced: TracedFunction, schedule: Schedule) -> BoundStep:
        bound = super().bind(traced, self.schedule(traced, schedule))
        return BoundStep(traced, self.program(bound.program))

    def schedule(self, traced: TracedFunction, schedule: Schedule) -> Schedule:
        """The schedule that runs instead."""
        return schedule

    def program(self, program: Program) -> Program:
        """The program that runs instead."""
        return program


class FreesTooLate(Wrong):
    """Frees each tensor after the next op, unless that makes it again."""

    def schedule(self, traced: TracedFunction, schedule: Schedule) -> Schedule:
        steps: list[Compute | Free] = []
        waiting: list[Free] = []
        for step in schedule:
            if isinstance(step, Free):
                waiting.append(step)
                continue
            made = traced.graph.ops[step.op].outputs
            steps += [*(free for free in waiting if free.tensor in made), step]
            steps += [free for free in waiting if free.tensor not in made]
            waiting = []
        return Schedule.of(steps + waiting)


class ForgetsAFree(Wrong):
    """Frees the last tensor that is freed only at the end."""

    def schedule(self, traced: TracedFunction, schedule: Schedule) -> Schedule:
        codes = schedule.codes.tolist()
        frees = [k for k, code in enumerate(codes) if code < 0 and traced.graph.tensors[~code].size]
        return Schedule(np.delete(schedule.codes, frees[-1:]))


class FreesTooEarly(Wrong):
    """Frees each tensor after its last reader, as TensorFlow does by itself."""

    def program(self, program: Program) -> Program:
        return replace(program, holds=())


class SkipsAnOp(Wrong):
    """Leaves out what is computed in vain."""

    def schedule(self, traced: TracedFunction, schedule: Schedule) -> Schedule:
        return traced.ordered.lean(schedule)


class ReadsAStaleCopy(Wrong):
    """Reads the first copy of each tensor, although it was computed again."""

    def program(self, program: Program) -> Program:
        first: dict[str, int] = {}
        for k, copy in enumerate(program.copies):
            first.setdefault(copy.op.name, k)

        def stale(v: Value) -> Value:
            return v if v.copy < 0 else Value(first[program.copies[v.copy].op.name], v.output)

        copies = tuple(replace(copy, inputs=tuple(map(stale, copy.inputs))) for copy in program.copies)
        return replace(program, copies=copies)


class ForgetsTheRandomState(Wrong):
    """Draws other numbers when it draws again: with the counter of another op."""

    def program(self, program: Program) -> Program:
        seen: dict[str, Copy] = {}
        copies = []
        for copy in program.copies:
            if copy.op.type.startswith("StatelessRandom"):
                others = [other.inputs for name, other in seen.items() if name != copy.op.name]
                if copy.op.name in seen and others:
                    copy = replace(copy, inputs=others[0])
                seen.setdefault(copy.op.name, copy)
            copies.append(copy)
        return replace(program, copies=tuple(copies))


class UpdatesTwice(Wrong):
    """Runs each in-place update twice."""

    def program(self, program: Program) -> Program:
        return _with_doubled(program, lambda copy: copy.op.type.startswith("AssignSub"))


class NeedsMoreWorkspace(Wrong):
    """Makes the result of each product twice, and drops the second."""

    def program(self, program: Program) -> Program:
        return _with_doubled(program, lambda copy: copy.op.type == "MatMul")


class SwapsTwoComputes(Wrong):
    """Swaps the first two adjacent computes that do not need each other."""

    def schedule(self, traced: TracedFunction, schedule: Schedule) -> Schedule:
        codes, ops = schedule.codes.tolist(), traced.graph.ops
        for k, (one, other) in enumerate(itertools.pairwise(codes)):
            if min(one, other) >= 0 and one != other:
                made, needs = ops[one].outputs, {*ops[other].inputs, *ops[other].outputs}
                if needs.isdisjoint(made):
                    return Schedule(np.array([*codes[:k], other, one, *codes[k + 2 :]]))
        return schedule


class LeaksATensor(Wrong):
    """Keeps the results of each call."""

    def bind(self, traced: TracedFunction, schedule: Schedule) -> BoundStep:
        return _Leaking(traced, super().bind(traced, schedule).program)


class AcceptsAnything(Wrong):
    """Does not ask the simulator."""

    def bind(self, traced: TracedFunction, schedule: Schedule) -> BoundStep:
        return BoundStep(traced, Program(copies=(), outputs=()))


class _Leaking(BoundStep):
    def run(self, tensors: Any) -> Any:
        self.__dict__.setdefault("kept", []).append(results := super().run(tensors))
        return results


def _with_doubled(program: Program, which: Callable[[Copy], bool]) -> Program:
    """A program in which some heavy copies run twice in a row, at the same position; the first is read."""
    number: dict[int, int] = {}
    copies: list[Copy] = []

    def moved(v: Value) -> Value:
        return v if v.copy < 0 else Value(number[v.copy], v.output)

    for k, copy in enumerate(program.copies):
        number[k] = len(copies)
        same = replace(copy, inputs=tuple(map(moved, copy.inputs)))
        copies += [same, same] if copy.heavy and which(copy) else [same]
    number[len(program.copies)] = len(copies)
    ends = (*(number[k + 1] - 1 for k in program.ends),)
    holds = tuple(hold._replace(value=moved(hold.value), until=number[hold.until]) for hold in program.holds)
    outputs = tuple(map(moved, program.outputs))
    return Program(copies=tuple(copies), outputs=outputs, ends=ends, holds=holds, entire=program.entire)


class Case(ExecutorConformance):
    examples = 60  # of twelve, none may compute an op in vain
    reorders = True

    def __init__(self, executor: Executor, trial: Trial) -> None:
        self.made, self.trial = executor, trial

    def executor(self) -> Executor:
        return self.made


RESULTS, ORDER = "test_results_are_those_of_the_program", "test_runs_the_schedule"
HELD, PEAKS = "test_holds_what_the_simulator_counts", "test_needs_no_more_while_an_op_runs"
WRONG = [
    (FreesTooLate, "attention", HELD),
    (ForgetsAFree, "attention", HELD),
    (FreesTooEarly, "attention", HELD),
    (SkipsAnOp, "attention", ORDER),
    (ReadsAStaleCopy, "attention", HELD),
    (ForgetsTheRandomState, "dropout", RESULTS),
    (UpdatesTwice, "adam", RESULTS),
    (SwapsTwoComputes, "adam", ORDER),
    (LeaksATensor, "attention", "test_leaves_nothing"),
    (NeedsMoreWorkspace, "split and unstack", PEAKS),
    (AcceptsAnything, "attention", "test_refuses_what_the_judge_rejects"),
]


@pytest.mark.parametrize(("executor", "trial", "law"), WRONG)
def test_a_wrong_executor_breaks_the_law(
    executor: type[Executor], trial: str, law: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "SHRINKING_S", 0.2)
    for made in (Executor, executor):
        # The kit remembers what it saw, by class; TestTf tries the right executor on the same trials.
        kind = type(made.__name__, (Case,), {"examples": 2} if made is Executor else {})
        case = kind(made(), named(trial))
        with pytest.raises(pytest.fail.Exception) if made is executor else nullcontext():
            getattr(case, law)()


@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.name)
def test_the_bounds_let_no_planned_tensor_pass(trial: FunctionTrial) -> None:
    traced = trial.traced()
    seen = trial.observe(Executor(), traced, everything(traced))
    assert seen is not None
    assert max(seen.under, seen.over) < min(t.size for t in traced.graph.tensors if t.size >= SMALL)


def everything(traced: TracedFunction) -> Schedule:
    return Schedule.from_sequence(traced.graph, range(traced.graph.n_ops))


def named(name: str) -> FunctionTrial:
    return next(trial for trial in TRIALS if trial.name == name)


def test_a_schedule_from_a_file_runs(tmp_path: Path) -> None:
    trial = named("adam")
    graph = trial.traced().graph
    found = checkmate.minimum_budget(graph, solver="heuristics").schedule
    assert found is not None
    checkmate.write_schedule(tmp_path / "s.json", found, graph)
    step = checkmate.tf2.bind(trial.traced(), checkmate.read_schedule(tmp_path / "s.json", graph))
    for mine, theirs in zip(trial.run(step), trial.plain(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_compute_in_vain_may_read_a_variable_after_its_update() -> None:
    trial = named("adam")
    traced = trial.traced()
    graph, writes = traced.graph, traced.ordered.writes
    again = next(v for v, op in enumerate(graph.ops) if op.recomputable and {*op.inputs} <= {*graph.inputs})
    schedule = Schedule.from_sequence(graph, [*range(graph.n_ops), again])
    assert late_reads(graph, schedule.sequence.tolist(), writes)
    for mine, theirs in zip(trial.run(bind(traced, schedule)), trial.plain(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_sum_starts_with_the_same_input_under_every_schedule() -> None:
    """An input of each sum is needed again, unless it is computed again: the first or the last."""
    x = tf.random.stateless_normal([64, 64], [1, 2])

    def products(x: tf.Tensor) -> tuple[tf.Tensor, ...]:
        a, b, c = (tf.linalg.matmul(f(x), x) for f in (tf.sin, tf.cos, tf.tanh))
        one, other = tf.add_n([a, b, c]), tf.add_n([c, b, a])
        return tf.matmul(one, a), tf.matmul(other, b), tf.matmul(other, c)

    traced = PlannedFunction(products, Options.parse(cost_model="flops")).trace(x)
    plain = bind(traced, everything(traced))(x)
    ops = traced.graph.ops
    free = [v for v, op in enumerate(ops) if op.recomputable and not {*op.outputs} & {*traced.graph.outputs}]
    for again in itertools.combinations(free, 3):
        steps = [step for v in range(len(ops)) for step in (*again, v)]
        needs = [v for k, v in enumerate(steps) if {*ops[v].inputs} <= _made(traced, steps[:k])]
        schedule = Schedule.from_sequence(traced.graph, needs)
        for mine, theirs in zip(bind(traced, schedule)(x), plain, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def _made(traced: TracedFunction, sequence: list[int]) -> set[int]:
    ops = traced.graph.ops
    found = set(traced.graph.inputs)
    for v in sequence:
        if {*ops[v].inputs} <= found:
            found |= {*ops[v].outputs}
    return found


def test_bind_refuses_what_the_simulator_rejects_and_another_kind_of_arguments() -> None:
    trial = named("several outputs")
    traced = trial.traced()
    with pytest.raises(InvalidScheduleError):
        checkmate.tf2.bind(traced, Schedule.of([]))
    step = checkmate.tf2.bind(traced, everything(traced))
    with pytest.raises(checkmate.tf2.UnsupportedFunctionError, match=r"traced for TensorSpec.*\(2,\)"):
        step(tf.zeros([2]), labels=3.0)


def test_a_bound_step_is_a_part_of_the_function_that_calls_it() -> None:
    trial = named("attention")
    step = bind(trial.traced(), everything(trial.traced()))
    outer = tf.function(lambda x: step(x), autograph=False)
    for mine, theirs in zip(trial.run(outer), trial.plain(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def program() -> tuple[Any, ...]:
    model = keras.Sequential([keras.Input([64]), keras.layers.Dense(64, "relu"), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return model, loss, "sgd", tf.TensorSpec([512, 64]), tf.TensorSpec([512], tf.int64)


def test_a_prepared_program_trains_and_says_what_it_measured() -> None:
    runnable = Executor().prepare(program, cost_model="flops", cache=False)
    bound = Executor().bind(runnable.traced, everything(runnable.traced))
    first, *_, last = [runnable.step(bound) for _ in range(5)]
    assert first.loss is not None
    assert last.loss is not None
    assert last.loss < first.loss
    assert (last.peak is not None) == sees_every_buffer()


def test_a_sample_is_used_and_a_text_is_not_made_up() -> None:
    runnable = Executor().prepare(
        (lambda x, k: tf.reduce_sum(x) * k, (tf.ones([2]), 3.0)), cost_model="flops"
    )
    bound = Executor().bind(runnable.traced, everything(runnable.traced))
    assert runnable.step(bound).loss == 6.0
    with pytest.raises(checkmate.tf2.ProgramError, match="give a tensor in its place"):
        Executor().prepare((tf.strings.length, (tf.TensorSpec([2], tf.string),)), cost_model="flops")

"""Frontends, executors and exporters: each check finds its fault; programs are arithmetic.

A program is a graph; op v makes 1 + the sum of its inputs. The executor follows the schedule with
real values, and the judge's rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from checkmate import Compute, DFGraph, Op, Schedule, Tensor, Timeline, simulate
from checkmate.testing import ExecutorConformance, ExporterConformance, FrontendConformance
from checkmate.testing.golden import unit_chain


@dataclass(frozen=True)
class Program:
    graph: DFGraph


class Run:
    """A bound program, which records its computes."""

    def __init__(self, graph: DFGraph, schedule: Schedule) -> None:
        self.graph, self.schedule = graph, schedule
        self.ran: list[int] = []

    def __call__(self, start: float) -> list[float]:
        values = dict.fromkeys(self.graph.inputs, start)
        self.ran = []
        for step in self.schedule:
            if isinstance(step, Compute):
                op = self.graph.ops[step.op]
                self.ran.append(step.op)
                total = start + sum(values[t] for t in op.inputs)
                values.update(dict.fromkeys(op.outputs, total))
            else:
                del values[step.tensor]
        return [values[t] for t in self.graph.outputs]


class Right:
    run: type[Run] = Run

    def bind(self, traced: Program, schedule: Schedule) -> Callable[..., Any]:
        simulate(traced.graph, schedule)
        return self.run(traced.graph, schedule)


class Fails(Right):
    def bind(self, traced: Program, schedule: Schedule) -> Callable[..., Any]:
        raise RuntimeError("no device")


class CountsComputes(Right):
    class run(Run):
        def __call__(self, start: float) -> list[float]:
            return [*super().__call__(start), float(len(self.ran))]


class KeepsState(Right):
    class run(Run):
        calls = 0.0

        def __call__(self, start: float) -> list[float]:
            self.calls += 1
            return super().__call__(start * self.calls)


class IgnoresSchedule(Right):
    class run(Run):
        def __init__(self, graph: DFGraph, schedule: Schedule) -> None:
            super().__init__(graph, Schedule.from_sequence(graph, range(graph.n_ops)))


class Lenient(Right):
    def bind(self, traced: Program, schedule: Schedule) -> Callable[..., Any]:
        everything = Schedule.from_sequence(traced.graph, range(traced.graph.n_ops))
        return Run(traced.graph, schedule if len(schedule) else everything)


class Case(ExecutorConformance):
    def __init__(self, executor: Any) -> None:
        self.made = executor

    def executor(self) -> Any:
        return self.made()

    def traced(self) -> Program:
        return Program(unit_chain(6))

    def run(self, bound: Callable[..., Any]) -> Sequence[Any]:
        return bound(1.5)

    def ran(self, bound: Any) -> Sequence[int]:
        return bound.ran


EXECUTORS = {
    "results_are_those_of_the_program": CountsComputes,
    "runs_again": KeepsState,
    "runs_the_schedule": IgnoresSchedule,
    "refuses_what_the_judge_rejects": Lenient,
}


def checks(kit: type) -> set[str]:
    return {name.removeprefix("test_") for name in dir(kit) if name.startswith("test_")}


def test_a_right_executor_passes_every_check(failing) -> None:
    assert failing(Case(Right)) == {}


def test_an_executor_that_fails_passes_no_check(failing) -> None:
    of_bytes = {"holds_what_the_simulator_counts", "needs_no_more_while_an_op_runs", "leaves_nothing"}
    assert set(failing(Case(Fails))) == checks(ExecutorConformance) - of_bytes


@pytest.mark.parametrize(("check", "executor"), EXECUTORS.items())
def test_a_wrong_executor_fails_the_check_for_its_fault_and_no_other(
    failing, check: str, executor: Any
) -> None:
    assert set(failing(Case(executor))) == {check}


class Traces(FrontendConformance):
    """A program of this frontend is a number of layers."""

    def frontend(self) -> Any:
        return self

    def programs(self) -> Iterable[tuple[Any, ...]]:
        return [(2,), (3,)]

    def trace(self, layers: int) -> Any:
        return Program(unit_chain(layers))


class TracesNothing(Traces):
    def programs(self) -> Iterable[tuple[Any, ...]]:
        return []


class TracesAList(Traces):
    def trace(self, layers: int) -> Any:
        return Program([])  # type: ignore[arg-type]


class ForgetsOutputs(Traces):
    def trace(self, layers: int) -> Any:
        return Program(replace(unit_chain(layers), outputs=()))


class ForgetsBytes(Traces):
    def trace(self, layers: int) -> Any:
        return Program(DFGraph.from_nodes(cost=[1], size=[0], deps=[[]]))


class NamesWithoutText(Traces):
    def trace(self, layers: int) -> Any:
        op = Op(name=b"raw", inputs=(), outputs=(0,), cost=1)  # type: ignore[arg-type]
        return Program(DFGraph(ops=(op,), tensors=(Tensor(name="t", size=1),), outputs=(0,)))


class Whimsical(Traces):
    traced = 0

    def trace(self, layers: int) -> Any:
        self.traced += 1
        return Program(replace(unit_chain(layers), fixed_size=self.traced))


FRONTENDS = [
    ("traces", TracesNothing),
    ("traces", TracesAList),
    ("computes_something", ForgetsOutputs),
    ("computes_something", ForgetsBytes),
    ("survives_the_wire", NamesWithoutText),
    ("deterministic", Whimsical),
]


def test_a_right_frontend_passes_every_check(failing) -> None:
    assert failing(Traces()) == {}
    assert checks(FrontendConformance) == {check for check, _ in FRONTENDS}


@pytest.mark.parametrize(("check", "frontend"), FRONTENDS)
def test_a_wrong_frontend_fails_the_check_for_its_fault_and_no_other(
    failing, check: str, frontend: Any
) -> None:
    assert set(failing(frontend())) == {check}


class Exports(ExporterConformance):
    def exporter(self) -> Any:
        return self

    def write(self, timeline: Timeline, file: Path, *, budget: int | None = None) -> None:
        file.write_text(repr(timeline), encoding="utf-8")


class WritesNothing(Exports):
    def write(self, timeline: Timeline, file: Path, *, budget: int | None = None) -> None:
        pass


class ChokesOnTightBudgets(Exports):
    def write(self, timeline: Timeline, file: Path, *, budget: int | None = None) -> None:
        if budget is not None and timeline.peak > budget:
            raise ValueError("over budget")
        super().write(timeline, file)


class ChokesOnNames(Exports):
    def write(self, timeline: Timeline, file: Path, *, budget: int | None = None) -> None:
        parts = (*timeline.graph.ops, *timeline.graph.tensors)
        file.write_text(" ".join(["names", *(part.name for part in parts)]), encoding="ascii")


class WritesTwo(Exports):
    def write(self, timeline: Timeline, file: Path, *, budget: int | None = None) -> None:
        super().write(timeline, file)
        super().write(timeline, file.with_suffix(".log"))


class Scribbles(Exports):
    def write(self, timeline: Timeline, file: Path, *, budget: int | None = None) -> None:
        super().write(timeline, file)
        object.__setattr__(timeline, "peak", timeline.peak + 1)


EXPORTERS = [
    ("writes_its_file", WritesNothing),
    ("writes_its_file", ChokesOnNames),
    ("writes_its_file", ChokesOnTightBudgets),
    ("writes_nothing_else", WritesTwo),
    ("does_not_mutate", Scribbles),
]


def test_a_right_exporter_passes_every_check(failing) -> None:
    assert failing(Exports()) == {}
    assert checks(ExporterConformance) == {check for check, _ in EXPORTERS}


@pytest.mark.parametrize(("check", "exporter"), EXPORTERS)
def test_a_wrong_exporter_fails_the_check_for_its_fault_and_no_other(
    failing, check: str, exporter: Any
) -> None:
    assert set(failing(exporter())) == {check}

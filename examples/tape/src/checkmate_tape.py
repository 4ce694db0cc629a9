"""The plugin: Checkmate traces the programs of ``numpy_tape`` and runs them by its schedules."""

import time
import tracemalloc
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy_tape import Call, Tape, network

from checkmate import DFGraph, Free, Op, Schedule, Tensor, simulate
from checkmate.plugins import Executor, ExecutorSpec, FrontendSpec, Observed, StepReport, hookimpl


class Traced(NamedTuple):
    """A program as the executor takes it: the calls are the ops of the graph, the state its inputs."""

    graph: DFGraph
    calls: Sequence[Call]
    state: dict[int, Any]
    renewed: Sequence[int]  # inputs: their next values are the graph's outputs, after the loss


class Frontend:
    """Traces programs; a program is a function without arguments that returns its tape."""

    def trace(self, program: Callable[[], Tape]) -> Traced:
        """The tape as a graph; the cost of an op is the number of bytes that it reads and makes."""
        tape = program()
        size = [array.nbytes for array in tape.arrays]
        ops = tuple(
            Op(
                name=call.name,
                inputs=call.reads,
                outputs=call.makes,
                cost=sum(size[t] for t in call.reads + call.makes),
                workspace=size[call.reads[0]] if call.kind.scratch else 0,
                backward=k >= tape.forward,
            )
            for k, call in enumerate(tape.calls)
        )
        tensors = tuple(Tensor(name=f"t{t}", size=n) for t, n in enumerate(size))
        graph = DFGraph(ops=ops, tensors=tensors, inputs=tape.inputs, outputs=tape.outputs, cost_unit="byte")
        return Traced(graph, tape.calls, {t: tape.arrays[t] for t in tape.inputs}, tuple(tape.after))


class TapeExecutor:
    """Follows a schedule to the letter."""

    def bind(self, traced: Traced, schedule: Schedule) -> Callable[..., list[Any]]:
        """A function that runs one step from the state of the program, and returns the graph's outputs."""
        simulate(traced.graph, schedule)  # raises InvalidScheduleError
        return partial(self.run, traced, schedule)

    def run(self, traced: Traced, schedule: Schedule, watch: Callable[..., object] = bool) -> list[Any]:
        """Run a step; ``watch(op)`` is called while an op runs, ``watch()`` between two ops."""
        held = dict(traced.state)
        for step in schedule:
            if isinstance(step, Free):
                del held[step.tensor]
            else:
                watch()
                self.compute(traced.calls[step.op], held, partial(watch, step.op))
        watch()
        return [held[t] for t in traced.graph.outputs]

    def compute(self, call: Call, held: dict[int, Any], watch: Callable[[], object]) -> None:
        """Run an op; older copies of what it makes are dropped afterwards."""
        made = call.kind.run([held[t] for t in call.reads], watch)
        held.update(zip(call.makes, made, strict=True))

    def prepare(self, program: Callable[[], Tape]) -> "Training":
        """For ``checkmate run``."""
        return Training(Frontend().trace(program))


class Training(NamedTuple):
    """A program whose state each step renews."""

    traced: Traced

    def step(self, bound: Callable[..., list[Any]]) -> StepReport:
        """Run one step for its peak, and again, because observing takes time, for its seconds."""
        peak = self.traced.graph.base_size + max(observe(bound).peaks)
        start = time.perf_counter()
        loss, *new = bound()
        seconds = time.perf_counter() - start
        self.traced.state.update(zip(self.traced.renewed, new, strict=True))
        return StepReport(loss=loss.item(), peak=peak, seconds=seconds)


def observe(bound: Callable[..., list[Any]]) -> Observed:
    """Call a bound program, and count the bytes of NumPy's arrays while each op runs and after it."""

    def watch(*op: int) -> None:
        traces = tracemalloc.take_snapshot().traces
        size = sum(trace.size for trace in traces if trace.domain == np.lib.tracemalloc_domain)
        ops.extend(op)
        (peaks if op else held).append(size)

    ops, peaks, held = list[int](), list[int](), list[int]()
    tracemalloc.start()
    results = [array.tolist() for array in bound(watch)]
    watch()
    tracemalloc.stop()
    return Observed(results=results, ops=ops, peaks=peaks, held=held[1:-1], left=held[-1])


class Trial(NamedTuple):
    """A program on which the conformance kit tests the executor."""

    name: str
    program: Callable[[], Tape]

    def traced(self) -> Traced:
        """Traced again in each call: the same state."""
        return Frontend().trace(self.program)

    def plain(self) -> list[Any]:
        """The results that the framework itself computes."""
        tape = self.program()
        return [tape.arrays[t] for t in tape.outputs]

    def run(self, bound: Callable[..., list[Any]]) -> list[Any]:
        """Bound programs leave the state alone, so that nothing has to be reset."""
        return bound()

    def observe(self, executor: Executor, traced: Any, schedule: Schedule) -> Observed:
        """NumPy reports its allocations everywhere."""
        return observe(executor.bind(traced, schedule))


@hookimpl
def checkmate_register_frontends() -> list[FrontendSpec]:
    """Offer ``checkmate trace --tape``."""
    return [FrontendSpec(name="tape", summary="NumPy with a tape", load=Frontend)]


@hookimpl
def checkmate_register_executors() -> list[ExecutorSpec]:
    """Offer ``checkmate run --tape``."""

    def trials() -> list[Trial]:
        return [Trial("shallow", partial(network, 1)), Trial("deep", network)]

    able = frozenset({"reorders"})
    return [ExecutorSpec(name="tape", summary="runs it", load=TapeExecutor, features=able, trials=trials)]

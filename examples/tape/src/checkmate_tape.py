"""A framework in miniature, NumPy with a tape, and the plugin with which Checkmate traces and runs it."""
# ruff: noqa: D102, D103 - checkmate.plugins documents the methods that it calls

import time
import tracemalloc
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from checkmate import DFGraph, Free, Op, Schedule, Tensor, simulate
from checkmate.plugins import Executor, ExecutorSpec, FrontendSpec, Observed, StepReport, hookimpl


class Kind(NamedTuple):
    """A kind of op: a pure function of arrays and, if it needs some, of scratch memory like the first one."""

    function: Callable[..., Any]
    scratch: bool = False
    backward: str = ""  # the kind that makes the gradients of its inputs from that of its first output
    saved: Sequence[int] = ()  # and from these of its inputs and outputs

    def run(self, arrays: Sequence[Any], watch: Callable[[], object] = bool) -> Sequence[Any]:
        scratch = [np.empty_like(arrays[0])] if self.scratch else []
        made = self.function(*arrays, *scratch)
        watch()  # now all its memory is in use
        return made if isinstance(made, tuple) else (made,)


KINDS = {
    "matmul": Kind(np.matmul, backward="matmul back", saved=[0, 1]),
    "matmul back": Kind(lambda x, w, g: (g @ w.T, x.T @ g)),
    "relu": Kind(lambda x: np.maximum(x, 0), backward="relu back", saved=[1]),
    "relu back": Kind(lambda y, g, scratch: g * np.sign(y, out=scratch), scratch=True),
    "mask": Kind(
        lambda x, key, scratch: np.rint(np.random.default_rng(key).random(out=scratch)), scratch=True
    ),
    "multiply": Kind(np.multiply, backward="multiply", saved=[1]),
    "mean": Kind(lambda x: x.mean(0, keepdims=True)),
    "add": Kind(np.add),
    "next": Kind(lambda key: key + 1),
    "loss": Kind(lambda y, scratch: np.square(y, out=scratch).sum(keepdims=True), scratch=True),
    "loss back": Kind(lambda y: y + y),
    "update": Kind(lambda w, g, scratch: w - np.multiply(g, 1e-4, out=scratch), scratch=True),
}


class Tape:
    """A training step: runs each op at once, and records it. Tensors are numbers, the inputs the first."""

    graph: DFGraph

    def __init__(self, *inputs: Any) -> None:
        self.arrays, self.inputs = list(inputs), tuple(range(len(inputs)))
        self.ops: list[Op] = []
        self.backward = False
        self.after: dict[int, int] = {}  # for inputs that change: their value after the step

    def __call__(self, kind: str, *reads: int) -> int:
        made = KINDS[kind].run([self.arrays[t] for t in reads])
        makes = tuple(range(len(self.arrays), len(self.arrays) + len(made)))
        self.arrays += made
        cost = sum(self.arrays[t].nbytes for t in reads + makes)
        work = KINDS[kind].scratch * self.arrays[reads[0]].nbytes
        op = Op(name=kind, inputs=reads, outputs=makes, cost=cost, workspace=work, backward=self.backward)
        self.ops.append(op)
        return makes[0]  # the others follow it

    def train(self, y: int, parameters: Sequence[int]) -> None:
        """The rest of the step: the loss, gradients by the tape, new parameters."""
        forward, loss, self.backward = self.ops[:], self("loss", y), True
        gradients = {y: self("loss back", y)}
        for op in reversed(forward):
            kind = KINDS[op.name]
            if kind.backward and op.outputs[0] in gradients:
                saved = [(op.inputs + op.outputs)[i] for i in kind.saved]
                self(kind.backward, *saved, gradients[op.outputs[0]])
                for x, g in zip(op.inputs, self.ops[-1].outputs, strict=False):
                    gradients[x] = self("add", gradients[x], g) if x in gradients else g
        self.after |= {w: self("update", w, gradients[w]) for w in parameters}
        tensors = tuple(Tensor(name=f"t{i}", size=array.nbytes) for i, array in enumerate(self.arrays))
        outputs = (loss, *self.after.values())
        self.graph = DFGraph(
            ops=tuple(self.ops), tensors=tensors, inputs=self.inputs, outputs=outputs, cost_unit="byte"
        )


class Runner:
    """Frontend and executor. A program is a function without arguments that returns its tape."""

    def trace(self, program: Callable[[], Tape]) -> Tape:
        return program()

    def bind(self, traced: Tape, schedule: Schedule) -> Callable[..., list[Any]]:
        simulate(traced.graph, schedule)  # raises InvalidScheduleError
        return partial(self.run, traced, schedule)

    def run(self, tape: Tape, schedule: Schedule, watch: Callable[..., object] = bool) -> list[Any]:
        held = {t: tape.arrays[t] for t in tape.inputs}
        for step in schedule:
            if isinstance(step, Free):
                del held[step.tensor]
            else:
                watch()
                self.compute(tape.ops[step.op], held, partial(watch, step.op))
        watch()
        return [held[t] for t in tape.graph.outputs]

    def compute(self, op: Op, held: dict[int, Any], watch: Callable[[], object]) -> None:
        made = KINDS[op.name].run([held[t] for t in op.inputs], watch)
        held.update(zip(op.outputs, made, strict=True))

    def prepare(self, program: Callable[[], Tape]) -> "Training":
        return Training(self.trace(program))


class Training(NamedTuple):
    """A program and its state, for ``checkmate run``."""

    traced: Tape

    def step(self, bound: Callable[..., list[Any]]) -> StepReport:
        peak = self.traced.graph.base_size + max(observe(bound).peaks)
        start = time.perf_counter()
        loss, *after = bound()  # once more, unobserved: observing takes time
        seconds = time.perf_counter() - start
        for t, array in zip(self.traced.after, after, strict=True):
            self.traced.arrays[t] = array
        return StepReport(loss=loss.item(), peak=peak, seconds=seconds)


class Trial(NamedTuple):
    """A program on which the conformance kit tests the executor."""

    name: str
    tape: Tape

    def traced(self) -> Tape:
        return self.tape

    def plain(self) -> list[Any]:
        return [self.tape.arrays[t] for t in self.tape.graph.outputs]

    def run(self, bound: Callable[..., list[Any]]) -> list[Any]:
        return bound()

    def observe(self, executor: Executor, traced: Any, schedule: Schedule) -> Observed:
        return observe(executor.bind(traced, schedule))


def observe(bound: Callable[..., list[Any]]) -> Observed:
    """Call a bound program; tracemalloc knows the bytes of NumPy's arrays."""

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


def network(layers: int = 4) -> Tape:
    """Layers that share their weights, a statistic that sums up their results, dropout, a last layer."""
    normal = np.random.default_rng(0).normal
    tape = Tape(normal(size=(64, 16)), *normal(scale=0.3, size=(2, 16, 16)), np.zeros((1, 16)), np.array([1]))
    y, w, v, total, key = tape.inputs
    for _ in range(layers):
        y = tape("relu", tape("matmul", y, w))
    tape.after |= {total: tape("add", total, tape("mean", y)), key: tape("next", key)}
    tape.train(tape("matmul", tape("multiply", y, tape("mask", y, key)), v), [w, v])
    return tape


@hookimpl
def checkmate_register_frontends() -> list[FrontendSpec]:
    return [FrontendSpec(name="tape", summary="NumPy with a tape", load=Runner)]


@hookimpl
def checkmate_register_executors() -> list[ExecutorSpec]:
    def trials() -> list[Trial]:
        return [Trial("shallow", network(1)), Trial("deep", network(4))]

    able = frozenset({"reorders"})
    return [ExecutorSpec(name="tape", summary="runs it", load=Runner, features=able, trials=trials)]

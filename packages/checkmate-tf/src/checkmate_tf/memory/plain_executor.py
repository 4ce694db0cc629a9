"""Simulate TensorFlow's own executor: the program of a step that runs without a plan.

    op ↦ (thread, start, end):      each op once, after those that it reads or waits for

An op that is cheap by its type runs in the thread that made it ready, before all others, the earliest first.
When other ops become ready together, the thread runs the last of them next, unless it has cheap ones to run,
and puts the rest into its queue. A thread takes the newest op of its own queue; if that is empty, the oldest
op of another thread's queue. So the executor goes deep first, and updates run once their gradients exist,
while other threads go on. On a GPU every op is cheap, as only its launch counts.

The inputs of an op are held until it ends, and no op that starts before its end may write over them.
"""

from __future__ import annotations

import heapq
import os
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

import tensorflow as tf

from checkmate.cost import OpProfile
from checkmate_tf.ops.storages import ALIASES, is_source, lender, nbytes, takes_over
from checkmate_tf.running.program import Copy, Hold, Program, Value, branch_programs, roots_of
from checkmate_tf.tracing.step_graph import TracedGraph

__all__ = ["Run", "executed", "plain_program", "threads_of"]

_CHEAP = ALIASES | {
    *("NoOp", "Shape", "ShapeN", "Size", "Rank", "VariableShape", "BroadcastGradientArgs"),
    "BiasAddGrad",  # mostly part of the kernel for the gradient of a convolution's weights
}
"""Types of ops, besides sources, that TensorFlow's executor never gives to another thread."""
_OVERHEAD_S = 2e-6
"""Seconds that each op takes in addition to its kernel."""
_BYTES_PER_S = 1e9
"""The assumed speed of an op that was not measured: bytes read and written per second."""


class Run(NamedTuple):
    """The run of an op.

    Attributes:
        op: the number of the op.
        start_s: seconds from the start of the step to the start of the run.
        end_s: seconds from the start of the step to the end of the run.
    """

    op: int
    start_s: float
    end_s: float


def threads_of(device: str) -> int:
    """The number of threads in which TensorFlow runs ops of a device, such as ``"CPU:0"``, side by side."""
    if not device.startswith("CPU"):
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return tf.config.threading.get_inter_op_parallelism_threads() or cores or 1


def executed(
    before: Sequence[Iterable[int]], seconds: Sequence[float], cheap: Set[int], threads: int
) -> list[Run]:
    """The runs of ops by the rule of TensorFlow's executor, in the order in which they start.

    ``before`` has the ops that each op waits for; ``cheap`` ops never go to another thread.

    >>> [run.op for run in executed([[], [0], [0], [1], [2]], [1.0] * 5, cheap={0}, threads=1)]
    [0, 2, 4, 1, 3]
    >>> [run.op for run in executed([[], [0], [0], [1], [2]], [1.0] * 5, cheap=set(range(5)), threads=1)]
    [0, 1, 2, 3, 4]
    """
    after: list[list[int]] = [[] for _ in before]
    waits = [set(ops) for ops in before]
    for k, ops in enumerate(waits):
        for j in ops:
            after[j].append(k)
    workers = [_Thread(cheap=cheap) for _ in range(threads)]
    workers[0].add([k for k, ops in enumerate(waits) if not ops])
    runs: list[Run] = []
    running: list[tuple[float, int, int, int]] = []  # end, number of the run, thread, op
    idle, now = list(range(threads)), 0.0
    while True:
        while idle and (op := _next(workers[idle[0] :] + workers[: idle[0]])) is not None:
            heapq.heappush(running, (now + seconds[op], len(runs), idle.pop(0), op))
            runs.append(Run(op, now, now + seconds[op]))
        if not running:
            return runs
        now, _, w, op = heapq.heappop(running)
        for k in after[op]:
            waits[k].remove(op)
        workers[w].add([k for k in after[op] if not waits[k]])
        idle.insert(0, w)  # it goes on at once; other threads take the rest


@dataclass(frozen=True, slots=True, kw_only=True)
class _Thread:
    """A thread of the executor.

    Attributes:
        cheap: as in :func:`executed`.
        inline: the ops that it runs next, in this order.
        queue: the ops that wait, the latest first.
    """

    cheap: Set[int]
    inline: deque[int] = field(default_factory=deque)
    queue: deque[int] = field(default_factory=deque)

    def add(self, ready: Sequence[int]) -> None:
        """Add ops that have become ready together."""
        self.inline.extend(k for k in ready if k in self.cheap)
        rest = [k for k in ready if k not in self.cheap]
        if rest and not self.inline:
            self.inline.append(rest.pop())
        self.queue.extendleft(rest)


def _next(threads: Sequence[_Thread]) -> int | None:
    """The op that the first of these threads runs next; None = no op is ready."""
    own, *others = threads
    if own.inline or own.queue:
        return (own.inline or own.queue).popleft()
    return next((other.queue.pop() for other in others if other.queue), None)


def plain_program(
    traced: TracedGraph,
    workspaces: Mapping[tf.Operation, int],
    profiles: Mapping[tf.Operation, OpProfile],
    device: str,
    threads: int | None = None,
) -> tuple[Program, dict[tf.Operation, int]]:
    """The program of a step as TensorFlow runs it without a plan, and the workspaces of its ops.

    Where ops run side by side, the inputs and outputs of an op are held until the last op that starts before
    its end, and its workspace is added to the workspaces of the ops that start meanwhile. Run times of ops
    without a profile are estimated. ``threads`` default to those of the device.
    """
    ops = traced.captured.ops
    inputs = [list(op.inputs) for op in ops]  # TensorFlow takes time to list them
    seconds = [_seconds(op, read, profiles) for op, read in zip(ops, inputs, strict=True)]
    given = {t.op.name: -1 - k for k, t in enumerate(traced.captured.inputs)}
    runs = [
        run
        for run in _executed(ops, inputs, seconds, device, threads or threads_of(device))
        if ops[run.op].name not in given
    ]
    number = given | {ops[run.op].name: k for k, run in enumerate(runs)}
    copies = tuple(
        Copy(
            op=ops[run.op],
            inputs=tuple(Value(number[t.op.name], t.value_index) for t in inputs[run.op]),
            heavy=True,
            branches=branch_programs(traced, ops[run.op]),
        )
        for run in runs
    )
    outputs = tuple(Value(number[t.op.name], t.value_index) for t in traced.captured.outputs)
    holds, needs = _side_by_side(copies, runs, outputs, workspaces)
    return Program(copies=copies, outputs=outputs, lists=traced.lists, holds=tuple(holds)), needs


def _executed(
    ops: Sequence[tf.Operation],
    inputs: Sequence[Sequence[tf.Tensor]],
    seconds: Sequence[float],
    device: str,
    threads: int,
) -> list[Run]:
    """The runs of the ops of a step on a device, in the order in which they start."""
    place = {op.name: k for k, op in enumerate(ops)}
    before = [
        [*(place[t.op.name] for t in read), *(place[c.name] for c in op.control_inputs)]
        for op, read in zip(ops, inputs, strict=True)
    ]
    on_cpu = device.startswith("CPU")
    cheap = {k for k, op in enumerate(ops) if not on_cpu or is_source(op) or op.type in _CHEAP}
    return executed(before, seconds, cheap, threads)


def _seconds(
    op: tf.Operation, read: Sequence[tf.Tensor], profiles: Mapping[tf.Operation, OpProfile]
) -> float:
    kernel = sum(map(nbytes, (*read, *op.outputs))) / _BYTES_PER_S
    return _OVERHEAD_S + (profiles[op].seconds if op in profiles else kernel)


def _side_by_side(
    copies: Sequence[Copy],
    runs: Sequence[Run],
    outputs: Sequence[Value],
    workspaces: Mapping[tf.Operation, int],
) -> tuple[list[Hold], dict[tf.Operation, int]]:
    """What each copy holds while later ones start, and the workspaces of all ops that run at once."""
    starts, over = [run.start_s for run in runs], _written_over(copies, outputs)
    lenders = {lender(copy.op) for copy in copies}
    holds, needs = [], dict(workspaces)
    for k, (copy, run) in enumerate(zip(copies, runs, strict=True)):
        last = bisect_left(starts, run.end_s) - 1  # the last copy that starts before this one ends
        if last > k:
            made = (Value(k, i) for i, _ in enumerate(copy.op.outputs))
            holds += [Hold(v, last) for v in (*copy.inputs, *made) if v != over.get(k)]
            for later in copies[k + 1 : last + 1]:
                if copy.op not in lenders and later.op not in lenders:
                    needs[later.op] = needs.get(later.op, 0) + workspaces.get(copy.op, 0)
    return holds, needs


def _written_over(copies: Sequence[Copy], outputs: Sequence[Value]) -> dict[int, Value]:
    """Copy → the input that it may write its output over, as no later copy reads it."""
    root = roots_of(copies)
    last = {root(v): k for k, copy in enumerate(copies) for v in copy.inputs}
    kept = {root(v) for v in outputs}
    found: dict[int, Value] = {}
    for k, copy in enumerate(copies):
        for v in (copy.inputs[i] for i in takes_over(copy.op)):
            made = root(v)
            resident = made.copy < 0 or is_source(copies[made.copy].op)
            if last[made] == k and made not in kept and not resident:
                found.setdefault(k, v)
    return found

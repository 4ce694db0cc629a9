"""Observe one call of a bound step: the ops that ran, and the live bytes M(t) between their starts.

The profiler records, on one clock, the start of each kernel and each allocation and release. The kernels of a
schedule run one after the other, in several threads, because each waits for the one before. TensorFlow
releases the inputs of a kernel before it starts the kernels that wait for it. So the bytes at the start of
each heavy kernel are exact, and so is their maximum until the next one starts. The exception is an output
that nothing reads: it is released while the next kernel starts or, in one of more than ten thousand calls,
after that. Light ops run as soon as their inputs exist: small tensors may be allocated and released early.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import tensorflow as tf

from checkmate.plugins import Observed
from checkmate_tf.api.bind import BoundStep
from checkmate_tf.costs.events import Allocation, Execution, Trace, TraceRecorder
from checkmate_tf.ops.storages import aliased_input, nbytes
from checkmate_tf.private import END_OF_STEP
from checkmate_tf.running.program import Program
from checkmate_tf.tracing.needs import SMALL

__all__ = ["light_bytes", "observe", "sees_every_buffer"]


_TRIES = 3
"""The most recordings of a call: in one of thousands, the profiler loses an event. The last one counts."""
_END = -1
"""The position that marks the end of a step, in place of a compute's position."""


@cache
def sees_every_buffer() -> bool:
    """Whether the profiler sees small buffers, too; :mod:`checkmate_tf.costs.events` says when it does."""
    x = tf.zeros([SMALL // 8])
    with TraceRecorder() as recorder:
        tf.negative(x)
    return any(a.delta == SMALL // 2 for a in recorder.trace.on("CPU:0"))


def observe(
    bound: BoundStep,
    restore: Callable[[], None],
    call: Callable[[], Any],
    read: Callable[[Any], Sequence[Any]],
) -> Observed | None:
    """Call a bound step once; None if the profiler does not see every buffer.

    In the result, ``under`` is the bytes of the graph's small tensors, which light ops may read early;
    ``over`` is the bytes of the outputs of all light ops.

    Args:
        bound: a step that has run once, so that TensorFlow holds what it keeps between calls.
        restore: sets the variables of the step to their values at the start.
        call: runs the step.
        read: results ↦ copies of them and of the variables.
    """
    if not sees_every_buffer():
        return None
    for _ in range(_TRIES):
        copies, trace = _recorded(restore, call, read)
        runs = list(_runs(trace, bound))
        changes = trace.on("CPU:0")
        held = np.cumsum([0, *(a.delta for a in changes)])
        positions = [position for _, position in runs]
        if positions == [*range(len(bound.program.ends)), _END] and held[-1] == 0:
            break
    at = [_start(run, changes) for run, _ in runs]
    op_at = _op_at(bound)
    return Observed(
        results=copies,
        ops=[op_at[position] for _, position in runs[:-1]],
        peaks=[int(held[i : j + 1].max()) for i, j in pairwise(at)],
        held=[int(held[j]) for j in at[1:]],
        left=int(held[-1]),
        under=sum(t.size for t in bound.traced.graph.tensors if t.size < SMALL),
        over=light_bytes(bound.program),
    )


def _recorded(
    restore: Callable[[], None], call: Callable[[], Any], read: Callable[[Any], Sequence[Any]]
) -> tuple[Sequence[Any], Trace]:
    """Results and trace of one call; the trace includes the release of the results."""
    restore()
    number, end = tf.zeros([]), _end_of_step()
    end(number)
    with TraceRecorder() as recorder:
        results = call()
        end(number)
        copies = read(results)
        del results
    return copies, recorder.trace


@cache
def _end_of_step() -> Any:
    return tf.function(lambda x: tf.negative(x, name=END_OF_STEP), autograph=False)


def _start(run: Execution, changes: Sequence[Allocation]) -> int:
    """The number of changes before a kernel; releases that precede its first allocation count as before."""
    k = bisect_left(changes, run.start_s, key=lambda a: a.time_s)
    while k < len(changes) and changes[k].delta < 0 and changes[k].time_s < run.start_s + run.seconds:
        k += 1
    return k


def _runs(trace: Trace, bound: BoundStep) -> Iterator[tuple[Execution, int]]:
    """Kernel and position of each compute that ran, and the end of the step."""
    before = None
    position = _positions(bound) | {END_OF_STEP: _END}
    for run in trace.executions:
        at = position.get(_known(run.name, position))
        if at is not None and at != before:
            yield run, at
            before = at


def _positions(bound: BoundStep) -> dict[str, int | None]:
    """Op of TensorFlow → the position of the compute that it belongs to; None = it is light."""
    program = bound.program
    return {
        name: bisect_left(program.ends, k) if copy.heavy else None
        for k, (name, copy) in enumerate(zip(bound.replay.names, program.copies, strict=True))
    }


def _op_at(bound: BoundStep) -> list[int]:
    """Position of a compute → the op of the graph that runs there."""
    ordered, copies = bound.traced.ordered, bound.program.copies
    op_of = {op.name: k for k, v in enumerate(ordered.order) for op in ordered.traced.groups[v]}
    return [op_of[copies[k].op.name] for k in bound.program.ends]


def _known(name: str, position: Mapping[str, int | None]) -> str:
    """The op that a run belongs to: an op of a branch is named after the op with the branch, and a slash."""
    while name not in position and "/" in name:
        name = name.rpartition("/")[0]
    return name


def light_bytes(program: Program) -> int:
    """Bytes of the outputs of all light copies; constants are held between calls."""
    return sum(
        nbytes(t)
        for copy in program.copies
        if not copy.heavy and copy.op.type != "Const"
        for t in copy.op.outputs
        if aliased_input(copy.op, t.value_index) is None
    )

"""Record TensorFlow's op executions, and its allocations δ₁, δ₂, … over time, while real code runs.

TensorFlow's profiler sees each run of an op, by the op's name, and each buffer that an allocator gives out or
takes back, with its address. The buffers that it sees on the CPU depend on how TensorFlow was started:

    default (oneDNN)                buffers of 256 KiB and more
    TF_ENABLE_ONEDNN_OPTS=0         every buffer
    TF_CPU_ALLOCATOR_USE_BFC=1      every buffer, oneDNN's own included

The two variables must be set before TensorFlow is imported.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import tensorflow as tf

from checkmate.errors import ProfilerBusyError
from checkmate_tf.private import XSpace, cpu_allocator_events

__all__ = ["Allocation", "Execution", "Trace", "TraceRecorder", "other_profiler_runs"]

_VERBOSE = 3
"""The level at which the profiler records allocations, and ops of any length."""
_OP = re.compile(r"([^:\s]+):(\w+)")
"""How the executor names a run of an op: the op's name, which has no colon, then ``:`` and its type."""


class Execution(NamedTuple):
    """One run of one op.

    Attributes:
        name: the name of the op in the graph that ran.
        kind: the type of the op there, which may name a oneDNN kernel.
        start_s: seconds since the recording began.
        seconds: run time of the kernel; on a GPU, of its launch.
    """

    name: str
    kind: str
    start_s: float
    seconds: float


class Allocation(NamedTuple):
    """One allocation or release of a buffer.

    Attributes:
        time_s: seconds since the recording began.
        delta: bytes requested; negative for a release. When a buffer older than the recording is released:
            the size that the allocator reports, which may be 0.
        address: the address of the buffer.
        allocator: the name of the allocator.
        op: the op that requested it; empty if unknown, and for a release.
        held: total bytes that the allocator has given out, in its own chunks; 0 if it keeps no statistics.
        older: whether the buffer was allocated before the recording.
    """

    time_s: float
    delta: int
    address: int
    allocator: str
    op: str
    held: int
    older: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """The events of a recording, in order of time.

    Attributes:
        executions: the runs of ops, on all devices.
        allocations: the allocations and releases, of all allocators.
    """

    executions: tuple[Execution, ...]
    allocations: tuple[Allocation, ...]

    @property
    def counts(self) -> Mapping[str, int]:
        """Name of an op → number of its runs; 0 for one that did not run."""
        return Counter(run.name for run in self.executions)

    @property
    def seconds(self) -> Mapping[str, float]:
        """Name of an op → seconds of all its runs."""
        total: defaultdict[str, float] = defaultdict(float)
        for run in self.executions:
            total[run.name] += run.seconds
        return total

    def on(self, device: str) -> tuple[Allocation, ...]:
        """The allocations in the memory of one device, ``"CPU:0"`` or ``"GPU:k"``."""
        on_gpu = device.startswith("GPU")
        prefix = device.replace(":", "_") + "_" if on_gpu else "GPU_"
        return tuple(a for a in self.allocations if a.allocator.startswith(prefix) == on_gpu)


class TraceRecorder:
    """Records a ``with`` block, all threads; takes a few milliseconds, and some microseconds for each event.

    >>> y = tf.function(lambda x: tf.nn.softmax(x, name="a"), autograph=False)
    >>> _ = y(tf.zeros([2, 3]))
    >>> with TraceRecorder() as recorder:
    ...     _ = y(tf.zeros([2, 3]))
    >>> recorder.trace.counts["a"], recorder.trace.counts["c"]
    (1, 0)

    Raises:
        ProfilerBusyError: on entry, inside another profiler.
    """

    running: ClassVar[bool] = False
    """Whether a recorder is recording."""

    def __init__(self) -> None:
        """Nothing happens before the block is entered."""
        self.trace = Trace(executions=(), allocations=())

    def __enter__(self) -> Self:
        """Start recording."""
        options = tf.profiler.experimental.ProfilerOptions(
            host_tracer_level=_VERBOSE, python_tracer_level=0, device_tracer_level=0
        )
        with ExitStack() as started:
            folder = started.enter_context(tempfile.TemporaryDirectory(prefix="checkmate-trace-"))
            try:
                with _quiet():
                    tf.profiler.experimental.start(folder, options=options)
            except tf.errors.AlreadyExistsError as error:
                raise ProfilerBusyError(
                    "another profiler or memory meter is running in this process, and TensorFlow has only "
                    "one: end it first"
                ) from error
            started.callback(self._stop, Path(folder))
            started.enter_context(cpu_allocator_events())
            self._started = started.pop_all()
        TraceRecorder.running = True
        return self

    def __exit__(self, *error: object) -> None:
        """Stop, and read the recording."""
        TraceRecorder.running = False
        self._started.close()

    def _stop(self, folder: Path) -> None:
        with _quiet():
            tf.profiler.experimental.stop()
        self.trace = _read([path.read_bytes() for path in folder.rglob("*.xplane.pb")])


def other_profiler_runs() -> bool:
    """Whether a profiler is running that is not a :class:`TraceRecorder`."""
    if TraceRecorder.running:
        return False
    try:
        with TraceRecorder():
            return False
    except ProfilerBusyError:
        return True


@contextmanager
def _quiet() -> Iterator[None]:
    """Drop the ten lines that TensorFlow's C++ code logs for each session; errors come as exceptions.

    File descriptor 2 belongs to the whole process, so keep the block short.
    """
    saved = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def _read(spaces: list[bytes]) -> Trace:
    executions, allocations = [], []
    for content in spaces:
        for plane in XSpace.FromString(content).planes:
            named = {key: event.name for key, event in plane.event_metadata.items()}
            stats = {key: stat.name for key, stat in plane.stat_metadata.items()}
            for line in plane.lines:
                for event in line.events:
                    name = named[event.metadata_id]
                    start_s = line.timestamp_ns * 1e-9 + event.offset_ps * 1e-12
                    if name in ("MemoryAllocation", "MemoryDeallocation"):
                        sign = 1 if name == "MemoryAllocation" else -1
                        allocations.append(_allocation(start_s, sign, dict(_facts(event, stats))))
                    elif (op := _OP.fullmatch(name)) and "::" not in name:
                        executions.append(Execution(op[1], op[2], start_s, event.duration_ps * 1e-12))
    allocations.sort(key=lambda a: a.time_s)
    executions.sort(key=lambda run: run.start_s)
    return Trace(executions=tuple(executions), allocations=tuple(_paired(allocations)))


def _facts(event: Any, stats: Mapping[int, str]) -> Iterator[tuple[str, Any]]:
    """The statistics of an event, by name."""
    for stat in event.stats:
        kind = stat.WhichOneof("value")
        yield stats[stat.metadata_id], stats[stat.ref_value] if kind == "ref_value" else getattr(stat, kind)


def _allocation(time_s: float, sign: int, facts: Mapping[str, Any]) -> Allocation:
    return Allocation(
        time_s,
        sign * int(facts.get("requested_bytes", 0)),
        int(facts.get("addr", 0)),
        str(facts.get("allocator_name", "")),
        str(facts.get("tf_op", "")),
        int(facts.get("bytes_allocated", 0)),
        sign < 0,
    )


def _paired(allocations: list[Allocation]) -> Iterator[Allocation]:
    """Each release with the bytes that were requested for the buffer: not every allocator reports them."""
    alive: dict[int, int] = {}
    for event in allocations:
        if not event.older:
            alive[event.address] = event.delta
            yield event
        elif event.address in alive:
            yield event._replace(delta=-alive.pop(event.address), older=False)
        else:
            yield event

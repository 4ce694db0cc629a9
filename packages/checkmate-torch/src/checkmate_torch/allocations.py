"""The allocation process of a stretch of CPU code: times t₁ ≤ t₂ ≤ … and signed bytes δ₁, δ₂, ….

Every tensor storage that is allocated gives a δ > 0, every one that is released a δ < 0, so that the running
sum is the number of live bytes made since the start. PyTorch's profiler sees each event exactly, the
temporaries inside of an op too; scratch memory that a kernel library takes from the operating system is no
tensor and is not seen.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt
from torch._C import _autograd
from torch._C._profiler import (
    ProfilerActivity,
    ProfilerConfig,
    ProfilerState,
    RecordScope,
    _ExperimentalConfig,
    _ExtraFields_Allocation,
    _ProfilerEvent,
)

from checkmate.errors import ProfilerBusyError

__all__ = ["AllocationRecorder", "Allocations", "allocation_events"]

_LOG_LEVEL = "KINETO_LOG_LEVEL"
_SILENT = "6"
"""Above every severity: some releases of PyTorch log each start and stop on stderr."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Allocations:
    """What was allocated and released, in order of time.

    Attributes:
        times_s: seconds on the clock of ``time.time``, float64 ``[n]``, not decreasing.
        deltas: bytes, int64 ``[n]``; negative for a release. Releases of storages that are older than the
            recording are not in it: PyTorch doesn't know their size.
        addresses: of the storages, int64 ``[n]``.
    """

    times_s: npt.NDArray[np.float64]
    deltas: npt.NDArray[np.int64]
    addresses: npt.NDArray[np.int64]

    @property
    def peak(self) -> int:
        """The most bytes alive at any time."""
        return int(np.cumsum(self.deltas).max(initial=0))

    @property
    def final(self) -> int:
        """Bytes alive at the end."""
        return int(self.deltas.sum())


class AllocationRecorder:
    """Records the CPU allocations of a ``with`` block: this thread's, and those of autograd on its behalf.

    >>> import torch
    >>> with AllocationRecorder() as recorder:
    ...     x = torch.zeros(256)
    ...     y = x.neg()
    ...     del x
    >>> recorder.events.deltas, recorder.events.peak, recorder.events.final
    (array([ 1024,  1024, -1024]), 2048, 1024)

    It costs less than a millisecond, and some microseconds for each event.

    Raises:
        ProfilerBusyError: on entry, if a profiler or another recorder is running.
    """

    __slots__ = ("events",)

    events: Allocations

    def __enter__(self) -> Self:
        """Start recording."""
        if _autograd._profiler_enabled():
            raise ProfilerBusyError(
                "memory can't be measured inside of another profiler or meter: leave that one first "
                "(a compiled module measures its ops in its first step)"
            )
        # Scopes choose the functions to record beside the allocations: this one never runs in eager code.
        config = ProfilerConfig(ProfilerState.KINETO, False, True, False, False, False, _ExperimentalConfig())
        activities = {ProfilerActivity.CPU}
        _prepare_quietly(config, activities)
        scopes = {RecordScope.STATIC_RUNTIME_OP}
        _autograd._enable_profiler(config, activities, scopes)  # type: ignore[call-arg]  # stub lacks scopes
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, and set ``events``."""
        self.events = allocation_events(_autograd._disable_profiler().experimental_event_tree())


def allocation_events(tree: list[_ProfilerEvent]) -> Allocations:
    """The CPU allocations in a profiler's event tree.

    Args:
        tree: of a profile taken with ``profile_memory=True``; from ``torch.profiler.profile`` it is
            ``prof.profiler.kineto_results.experimental_event_tree()``.
    """
    events = sorted(_cpu_allocations(tree), key=lambda event: event[0])
    alive: set[int] = set()
    kept: list[tuple[int, int, int]] = []
    for time_ns, address, delta in events:
        if delta > 0:
            alive.add(address)
        elif address not in alive:
            continue  # older than the recording; what the profiler takes for its size may be a stale one
        else:
            alive.remove(address)
        kept.append((time_ns, delta, address))
    table = np.array(kept, dtype=np.int64).reshape(-1, 3)
    return Allocations(times_s=table[:, 0] / 1e9, deltas=table[:, 1], addresses=table[:, 2])


def _cpu_allocations(tree: list[_ProfilerEvent]) -> Iterator[tuple[int, int, int]]:
    """(time in ns, address, signed bytes) of every CPU allocation event, parents before children."""
    for event in tree:
        fields = event.extra_fields
        if isinstance(fields, _ExtraFields_Allocation) and fields.device.type == "cpu":
            yield event.start_time_ns, fields.ptr, fields.alloc_size
        yield from _cpu_allocations(event.children)


def _prepare_quietly(config: ProfilerConfig, activities: set[ProfilerActivity]) -> None:
    """Prepare the profiler without its log lines, unless the user chose a log level."""
    chosen = os.environ.get(_LOG_LEVEL)
    os.environ[_LOG_LEVEL] = chosen if chosen is not None else _SILENT
    try:
        _autograd._prepare_profiler(config, activities)
    finally:
        if chosen is None:
            del os.environ[_LOG_LEVEL]

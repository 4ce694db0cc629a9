"""The allocation process of a stretch of CPU code: times t₁ ≤ t₂ ≤ … and signed bytes δ₁, δ₂, ….

Each allocation of a tensor's storage gives a δ > 0, each release a δ < 0, so that the running sum is the
number of live bytes allocated since the start. PyTorch's profiler sees each event exactly, also for the
temporaries inside an op. It does not see scratch memory that a kernel library takes from the operating
system.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from checkmate.errors import ProfilerBusyError
from checkmate_torch.private import (
    ProfilerEvent,
    cpu_allocations,
    profiler_is_running,
    start_profiler,
    stop_profiler,
)

__all__ = ["AllocationRecorder", "Allocations", "allocation_events"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Allocations:
    """Allocations and releases in order of time.

    Attributes:
        times_s: seconds on the clock of ``time.time``, float64 ``[n]``, not decreasing.
        deltas: bytes, int64 ``[n]``; negative for a release. Releases of storages older than the recording
            are left out: PyTorch doesn't know their size.
        addresses: address of each storage, int64 ``[n]``.
    """

    times_s: npt.NDArray[np.float64]
    deltas: npt.NDArray[np.int64]
    addresses: npt.NDArray[np.int64]

    @property
    def peak(self) -> int:
        """The maximum of live bytes."""
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

    Recording costs less than a millisecond, and some microseconds for each event.

    Raises:
        ProfilerBusyError: on entry, if a profiler or another recorder is running.
    """

    events: Allocations

    def __enter__(self) -> Self:
        if profiler_is_running():
            raise ProfilerBusyError(
                "memory can't be measured inside another profiler or meter: leave that one first "
                "(a compiled module measures its ops in its first step)"
            )
        start_profiler()
        return self

    def __exit__(self, *_: object) -> None:
        self.events = allocation_events(stop_profiler())


def allocation_events(tree: Sequence[ProfilerEvent]) -> Allocations:
    """The CPU allocations in a profiler's event tree.

    Args:
        tree: events of a profile taken with ``profile_memory=True``; from ``torch.profiler.profile`` it is
            ``prof.profiler.kineto_results.experimental_event_tree()``.
    """
    events = sorted(cpu_allocations(tree), key=lambda event: event[0])
    alive: set[int] = set()
    kept: list[tuple[int, int, int]] = []
    for time_ns, address, delta in events:
        if delta > 0:
            alive.add(address)
        elif address not in alive:
            continue  # older than the recording: the profiler may report the size of an earlier storage there
        else:
            alive.remove(address)
        kept.append((time_ns, delta, address))
    table = np.array(kept, dtype=np.int64).reshape(-1, 3)
    return Allocations(times_s=table[:, 0] / 1e9, deltas=table[:, 1], addresses=table[:, 2])

"""The profiler of PyTorch, which sees each allocation."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

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

__all__ = [
    "ProfilerEvent",
    "cpu_allocations",
    "profiler_is_running",
    "start_profiler",
    "stop_profiler",
]

ProfilerEvent = _ProfilerEvent
_LOG_LEVEL = "KINETO_LOG_LEVEL"
_SILENT = "6"
"""A log level above every severity: some releases of PyTorch log each start and stop on stderr."""


def profiler_is_running() -> bool:
    """Whether a profiler records in this process."""
    return bool(_autograd._profiler_enabled())


def start_profiler() -> None:
    """Record the allocations of this thread, and of autograd on its behalf, and no ops."""
    # Scopes choose the functions to record beside allocations: this one never runs in eager code.
    config = ProfilerConfig(ProfilerState.KINETO, False, True, False, False, False, _ExperimentalConfig())
    activities = {ProfilerActivity.CPU}
    chosen = os.environ.get(_LOG_LEVEL)
    os.environ[_LOG_LEVEL] = chosen if chosen is not None else _SILENT
    try:
        _autograd._prepare_profiler(config, activities)
    finally:
        if chosen is None:
            del os.environ[_LOG_LEVEL]
    _autograd._enable_profiler(config, activities, {RecordScope.STATIC_RUNTIME_OP})  # type: ignore[call-arg]


def stop_profiler() -> list[ProfilerEvent]:
    """Stop recording; the recorded events as trees."""
    return _autograd._disable_profiler().experimental_event_tree()


def cpu_allocations(tree: Sequence[ProfilerEvent]) -> Iterator[tuple[int, int, int]]:
    """(time in ns, address, signed bytes) of every CPU allocation event, parents before children."""
    for event in tree:
        fields = event.extra_fields
        if isinstance(fields, _ExtraFields_Allocation) and fields.device.type == "cpu":
            yield event.start_time_ns, fields.ptr, fields.alloc_size
        yield from cpu_allocations(event.children)

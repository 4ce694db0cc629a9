"""The cost of one op on one device: seconds of a run, and bytes that it needs beyond its outputs.

With L(t) the live bytes during a run, relative to its start and with its outputs alive at its end T,
``workspace = max L − L(T)``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

import torch

from checkmate.cost import OpProfile
from checkmate_torch.costs.allocations import AllocationRecorder
from checkmate_torch.private import sleep_on_gpu

__all__ = ["profile_op"]

_SPENT_S = 0.02  # seconds that the timed runs of an op on a CPU may take together
_LEAST_RUNS = 3  # timed runs on a CPU, at least
_MOST_RUNS = 20  # timed runs on a CPU, at most
_QUEUED_RUNS = 5  # timed runs on a GPU
_SLEEP_CYCLES = 1_000_000  # GPU cycles for which the stream sleeps while the runs queue up


def profile_op(call: Callable[[], object], device: torch.device) -> OpProfile:
    """Run an op a few times and measure it; about 30 ms at most, or four runs of a longer op.

    The first run is the warm-up and measures the workspace. The time is taken from the fastest of the other
    runs, of which there are at least three. The state of the random number generators is restored, and
    autograd is off.

    Args:
        call: runs the op on tensors that it holds, and returns its outputs; must not modify its inputs in a
            way that changes its cost.
        device: the device of those tensors.

    Raises:
        ProfilerBusyError: inside another profiler (CPU only).
    """
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.no_grad():
        if device.type == "cuda":
            workspace = _workspace_cuda(call, device)
            return OpProfile.of_runs(_seconds_cuda(call, device), workspace)
        workspace = _workspace_cpu(call)
        return OpProfile.of_runs(_seconds_cpu(call), workspace)


def _workspace_cpu(call: Callable[[], object]) -> int:
    with AllocationRecorder() as recorder:
        outputs = call()
    del outputs  # not before: the outputs belong to the bytes alive at the end of the recording
    return recorder.events.peak - recorder.events.final


def _workspace_cuda(call: Callable[[], object], device: torch.device) -> int:
    call()  # the first run allocates library handles and their lasting buffers
    torch.cuda.reset_peak_memory_stats(device)
    outputs = call()
    # Requested bytes: the allocator's own rounding depends on what it has cached.
    stats = torch.cuda.memory_stats(device)
    del outputs
    return int(stats["requested_bytes.all.peak"] - stats["requested_bytes.all.current"])


def _seconds_cpu(call: Callable[[], object]) -> list[float]:
    """Times of several runs, which stop once they have taken ``_SPENT_S`` in all.

    A long op runs ``_LEAST_RUNS`` times: another process may have disturbed one of them, and the result is
    kept on disk.
    """
    deadline, seconds = time.perf_counter() + _SPENT_S, list[float]()
    while len(seconds) < _LEAST_RUNS or (len(seconds) < _MOST_RUNS and time.perf_counter() <= deadline):
        start = time.perf_counter()
        outputs = call()
        seconds.append(time.perf_counter() - start)
        del outputs  # outside the measured time
    return seconds


def _seconds_cuda(call: Callable[[], object], device: torch.device) -> list[float]:
    """Times between events around runs that queue behind a sleeping kernel, so that launches don't count."""
    with torch.cuda.device(device):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(_QUEUED_RUNS + 1)]  # type: ignore[no-untyped-call]
        sleep_on_gpu(_SLEEP_CYCLES)
        marks[0].record()
        for mark in marks[1:]:
            call()
            mark.record()
        marks[-1].synchronize()
    return [float(start.elapsed_time(end)) / 1e3 for start, end in pairwise(marks)]

"""Live bytes of a device over time, M(t) = M₀ + Σ_{tᵢ ≤ t} δᵢ, measured while real code runs.

M₀ is what was alive before: the models, optimizers, variables and tensors that the caller names, each buffer
once, or everything, if nothing is named. Every δ is a buffer given out or taken back by the device's
allocator; max M is the number that a budget bounds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from checkmate.errors import CheckmateError
from checkmate_tf.buffers import buffers_of
from checkmate_tf.events import Allocation, TraceRecorder

__all__ = ["MemoryMeter", "NoStatisticsError", "memory_meter"]


class NoStatisticsError(CheckmateError, RuntimeError):
    """A device's allocator doesn't count; the message says what to set so that it does."""


@dataclass(slots=True, kw_only=True, eq=False)
class MemoryMeter:
    """What :func:`memory_meter` measured; complete once its block has ended.

    Attributes:
        base: bytes alive at entry.
        peak: the most bytes alive at any time, ``base`` included.
        times_s: seconds since entry, float64 ``[n]``, starting at 0.
        bytes: live bytes from each of these times on, int64 ``[n]``, starting at ``base``. On a GPU only the
            end points and the peak are known.
        held: the most bytes that the allocator had given out during the block, in its own chunks and with all
            that was there before: what a physical limit bounds. 0 if it doesn't count, or gave out nothing.
    """

    base: int
    peak: int
    times_s: npt.NDArray[np.float64]
    bytes: npt.NDArray[np.int64]
    held: int = 0


@contextmanager
def memory_meter(*resident: object, device: str = "CPU:0") -> Iterator[MemoryMeter]:
    """Measure the live bytes of a block of code on one device, temporaries inside of ops included.

    On the CPU, TensorFlow's profiler sees each buffer, with the bytes that were asked for: all of them with
    ``TF_CPU_ALLOCATOR_USE_BFC=1`` or ``TF_ENABLE_ONEDNN_OPTS=0`` in the environment before TensorFlow is
    imported, otherwise those of 256 KiB and more. On a GPU the peak is the allocator's own, rounded by it.

    Args:
        resident: what is alive at entry and belongs to the account: models, optimizers, variables, tensors,
            and containers of these. Name all or nothing: if something is named, what is not named does not
            exist for the meter. If nothing is, ``base`` is what the allocator has given out by its own count,
            or 0 where it doesn't count. On a GPU everything that is alive counts in any case.
        device: ``"CPU:0"`` or ``"GPU:k"``.

    Yields:
        The meter; ``base`` is known at once, the rest when the block has ended.

    Raises:
        ProfilerBusyError: inside of another profiler or meter (CPU only).
        NoStatisticsError: if a GPU's allocator keeps no statistics.
        ValueError: if there is no such device.

    >>> x = tf.zeros([256, 512])
    >>> with memory_meter(x) as meter:
    ...     y = tf.negative(x)
    >>> meter.base, meter.peak, meter.bytes
    (524288, 1048576, array([ 524288, 1048576]))
    """
    kind = device.removeprefix("/").removeprefix("device:").upper()
    if kind not in {f"{d.device_type}:{k}" for t in ("CPU", "GPU") for k, d in enumerate(_devices(t))}:
        raise ValueError(
            f"can't measure memory on {device!r}: only on 'CPU:0', and on 'GPU:0' if there is one"
        )
    with _meter_cpu(kind, resident) if kind.startswith("CPU") else _meter_gpu(kind) as meter:
        del resident  # the block may release them: keep nothing alive
        yield meter


@contextmanager
def _meter_cpu(device: str, resident: tuple[object, ...]) -> Iterator[MemoryMeter]:
    sizes = buffers_of(resident)
    counted = _statistics(device)
    base = sum(sizes.values()) if resident else counted.get("current", 0)
    everything = not resident and bool(counted)
    del resident
    meter = MemoryMeter(base=base, peak=base, times_s=np.zeros(1), bytes=np.array([base]))
    with TraceRecorder() as recorder:
        yield meter
    events = recorder.trace.on(device)
    deltas = [a.delta if everything or not a.older else -sizes.pop(a.address, 0) for a in events]
    changes = [(max(a.time_s, 0.0), delta) for a, delta in zip(events, deltas, strict=True) if delta]
    meter.times_s = np.array([0.0, *(time_s for time_s, _ in changes)])
    meter.bytes = base + np.cumsum([0, *(delta for _, delta in changes)], dtype=np.int64)
    meter.peak = int(meter.bytes.max())
    meter.held = max((_before(a) for a in events), default=0)


@contextmanager
def _meter_gpu(device: str) -> Iterator[MemoryMeter]:
    tf.test.experimental.sync_devices()
    base = _statistics(device).get("current")
    if base is None:
        raise NoStatisticsError(
            f"the allocator of {device} keeps no statistics: TensorFlow's own does, unset TF_GPU_ALLOCATOR "
            "before TensorFlow is imported"
        )
    tf.config.experimental.reset_memory_stats(device)
    meter = MemoryMeter(base=base, peak=base, times_s=np.zeros(1), bytes=np.array([base]))
    start_s = time.perf_counter()
    yield meter
    tf.test.experimental.sync_devices()
    end_s, counted = time.perf_counter() - start_s, _statistics(device)
    meter.peak = meter.held = counted["peak"]
    meter.times_s = np.array([0.0, end_s / 2, end_s])
    meter.bytes = np.array([base, meter.peak, counted["current"]])


def _before(event: Allocation) -> int:
    """The larger of what an allocator held before an event and after it."""
    return max(event.held, event.held - event.delta) if event.held else 0


def _devices(kind: str) -> list[tf.config.LogicalDevice]:
    return list(tf.config.list_logical_devices(kind))


def _statistics(device: str) -> Mapping[str, int]:
    """What an allocator counts, ``current`` and ``peak``; empty if it doesn't."""
    try:
        return dict(tf.config.experimental.get_memory_info(device))
    except ValueError:
        return {}

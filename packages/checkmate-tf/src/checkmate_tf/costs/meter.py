"""Measure the live bytes of a device while real code runs, M(t) = M₀ + Σ_{tᵢ ≤ t} δᵢ.

M₀ counts the bytes that are allocated at the start: the buffers of the models, optimizers, variables and
tensors that the caller names, each once; or, if none is named, all that the allocator counts. Each δ is an
allocation or a release by the device's allocator. A budget bounds max M.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from checkmate.errors import CheckmateError
from checkmate_tf.costs.events import Allocation, TraceRecorder
from checkmate_tf.ops.storages import nbytes

__all__ = ["MemoryMeter", "NoStatisticsError", "memory_meter"]


class NoStatisticsError(CheckmateError, RuntimeError):
    """A device's allocator keeps no statistics; the message names the setting to change."""


@dataclass(slots=True, kw_only=True, eq=False)
class MemoryMeter:
    """The measurement of :func:`memory_meter`; complete once its block has ended.

    Attributes:
        base: bytes allocated at entry.
        peak: maximum of live bytes, ``base`` included.
        times_s: seconds since entry, float64 ``[n]``, starting at 0.
        bytes: live bytes from each of these times on, int64 ``[n]``, starting at ``base``. On a GPU only the
            end points and the peak are known.
        held: the most bytes that the allocator had given out during the block, in whole chunks, earlier
            allocations included. A physical limit bounds this number. 0 if the allocator keeps no statistics,
            or gave out nothing.
    """

    base: int
    peak: int
    times_s: npt.NDArray[np.float64]
    bytes: npt.NDArray[np.int64]
    held: int = 0


@contextmanager
def memory_meter(*resident: object, device: str = "CPU:0") -> Iterator[MemoryMeter]:
    """Measure the live bytes of a block of code on one device, temporaries inside ops included.

    On the CPU the meter sees the allocations through TensorFlow's profiler, with the bytes that were
    requested: all of them with ``TF_CPU_ALLOCATOR_USE_BFC=1`` or ``TF_ENABLE_ONEDNN_OPTS=0`` in the
    environment before TensorFlow is imported, otherwise those of 256 KiB and more. On a GPU the peak is the
    allocator's own, with its rounding.

    Args:
        resident: the values to count from the start: models, optimizers, variables, tensors, and containers
            of these. Name all of them or none: if any is named, other buffers that were allocated before the
            block are not counted. If none is named, ``base`` is the allocator's own count, or 0 if it keeps
            none. On a GPU everything that is allocated counts in any case.
        device: ``"CPU:0"`` or ``"GPU:k"``.

    Yields:
        The meter; ``base`` is known at once, the rest when the block has ended.

    Raises:
        ProfilerBusyError: inside another profiler or meter (CPU only).
        NoStatisticsError: if a GPU's allocator keeps no statistics.
        ValueError: if there is no such device.

    >>> x = tf.zeros([256, 512])
    >>> with memory_meter(x) as meter:
    ...     y = tf.negative(x)
    >>> meter.base, meter.peak, meter.bytes
    (524288, 1048576, array([ 524288, 1048576]))
    """
    kind = device.removeprefix("/").removeprefix("device:").upper()
    known = {f"{t}:{k}" for t in ("CPU", "GPU") for k, _ in enumerate(tf.config.list_logical_devices(t))}
    if kind not in known:
        raise ValueError(
            f"can't measure memory on {device!r}: only on 'CPU:0', and on 'GPU:0' if there is one"
        )
    with _meter_cpu(kind, resident) if kind.startswith("CPU") else _meter_gpu(kind) as meter:
        del resident  # the block may release them: keep nothing alive
        yield meter


@contextmanager
def _meter_cpu(device: str, resident: tuple[object, ...]) -> Iterator[MemoryMeter]:
    sizes = _buffers_of(resident)
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
    """The larger number of bytes that an allocator had given out: before an event, or after it."""
    return max(event.held, event.held - event.delta) if event.held else 0


def _statistics(device: str) -> Mapping[str, int]:
    """The statistics of an allocator, ``current`` and ``peak``; empty if it keeps none."""
    try:
        return dict(tf.config.experimental.get_memory_info(device))
    except ValueError:
        return {}


def _buffers_of(resident: object) -> dict[int, int]:
    """Address → bytes of each buffer; another number, if TensorFlow shows no address, as on a GPU."""
    sizes = {}
    for tensor in _tensors(resident):
        address = _address(tensor)
        sizes[-1 - id(tensor) if address is None else address] = nbytes(tensor)
    return sizes


def _tensors(value: object) -> Iterator[tf.Tensor | tf.Variable]:
    """The tensors of a nest; a variable is replaced by its present value."""
    if isinstance(value, tf.Variable):
        yield value.read_value() if "CPU" in value.device else value
    elif isinstance(value, tf.Tensor):
        yield value
    elif isinstance(value, tf.distribute.DistributedValues | Mapping):
        yield from _tensors(list(value.values() if isinstance(value, Mapping) else value.values))
    elif isinstance(held := getattr(value, "variables", None), Iterable):  # a model, a layer, an optimizer
        yield from _tensors(list(held))
    elif isinstance(held := getattr(value, "value", None), tf.Variable | tf.Tensor):  # a variable of Keras
        yield from _tensors(held)
    elif isinstance(value, Iterable) and not isinstance(value, str | bytes):
        for item in value:
            yield from _tensors(item)


def _address(tensor: tf.Tensor | tf.Variable) -> int | None:
    """The address of a tensor's buffer, if that is in the memory of the host."""
    if not isinstance(tensor, tf.Tensor) or "CPU" not in tensor.device:
        return None
    try:
        return int(np.asarray(memoryview(tensor)).__array_interface__["data"][0])
    except ValueError:  # NumPy lacks bfloat16 and float8: read the bits as integers
        same = tf.bitcast(tensor, {1: tf.uint8, 2: tf.uint16}[tensor.dtype.size])
        return int(np.asarray(memoryview(same)).__array_interface__["data"][0])

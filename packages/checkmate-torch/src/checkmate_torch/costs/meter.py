"""Live tensor bytes over time, M(t) = M₀ + Σ_{tᵢ ≤ t} δᵢ, measured while real code runs.

M₀ counts the bytes that are resident at the start: the storages of the modules, optimizers and tensors that
the caller names, each once. Each δ is an allocation or a release. A budget bounds max M.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from checkmate_torch.costs.allocations import AllocationRecorder, Allocations
from checkmate_torch.ops.storages import storages_of

__all__ = ["MemoryMeter", "memory_meter", "resident_bytes"]


@dataclass(slots=True, kw_only=True, eq=False)
class MemoryMeter:
    """The measurement of :func:`memory_meter`; complete once its block has ended.

    Attributes:
        base: bytes resident at entry.
        peak: maximum of live bytes, ``base`` included.
        times_s: seconds since entry, float64 ``[n]``, starting at 0.
        bytes: live bytes from each of these times on, int64 ``[n]``, starting at ``base``. On CUDA only the
            end points and the peak are known.
        addresses: address of the storage that each change allocates or frees, int64 ``[n]``, the first being
            0; empty on CUDA.
    """

    base: int
    peak: int
    times_s: npt.NDArray[np.float64]
    bytes: npt.NDArray[np.int64]
    addresses: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64), repr=False)


@contextmanager
def memory_meter(*resident: object, device: torch.device | str | None = None) -> Iterator[MemoryMeter]:
    """Measure the live tensor bytes of a block of code on one device.

    On the CPU the meter sees every tensor allocation of this thread, and of autograd on its behalf, also the
    temporaries inside ops. It does not see the scratch memory of kernel libraries. On CUDA the peak is
    ``torch.cuda.max_memory_allocated``, with the allocator's rounding. When the block releases a storage that
    is older than itself, PyTorch, which does not know its size, may log a line on stderr once; the meter
    knows the size.

    Args:
        resident: the values to count from the start: modules (parameters, buffers and gradients), optimizers
            (state), tensors, and containers of these. Releasing one of their storages inside the block lowers
            the count. On the CPU, tensors that were allocated before the block and are not named here are
            not counted; on CUDA everything that is allocated counts.
        device: the device to measure; default the GPU that holds some of ``resident``, else the CPU.

    Yields:
        The meter; ``base`` is known at once, the rest when the block has ended.

    Raises:
        ProfilerBusyError: inside another profiler or meter (CPU only).
        ValueError: if ``resident`` is spread over several devices and ``device`` is not given, or if the
            device is neither the CPU nor on CUDA.

    >>> x = torch.zeros(256)
    >>> with memory_meter(x) as meter:
    ...     y = x.neg()
    >>> meter.base, meter.peak, meter.bytes
    (1024, 2048, array([1024, 2048]))
    """
    storages = list(storages_of(resident).values())
    where = torch.device(device) if device is not None else _device_of(storages)
    if where.type not in ("cpu", "cuda"):
        raise ValueError(f"can't measure memory on {where}: only on the CPU and on CUDA")
    watch = _Releases([storage for storage in storages if storage.device.type == "cpu"])
    del resident, storages  # the block may release them: keep nothing alive
    with _meter_cpu(watch) if where.type == "cpu" else _meter_cuda(where) as meter:
        yield meter


def resident_bytes(*resident: object) -> int:
    """Bytes of the storages of modules, optimizers, tensors and containers of these, each counted once.

    >>> x = torch.zeros(256)
    >>> resident_bytes(x, [x[:3], {"weight": torch.zeros(2)}])
    1032
    """
    return sum(storage.nbytes() for storage in storages_of(resident).values())


class _Releases:
    """Notes the releases of storages older than the recording: the profiler doesn't know their sizes."""

    def __init__(self, storages: list[torch.UntypedStorage]) -> None:
        self.base = sum(storage.nbytes() for storage in storages)
        self._noted: list[tuple[float, int, int]] = []
        self._watches = [weakref.finalize(s, self._note, s.nbytes(), s.data_ptr()) for s in storages]

    def _note(self, size: int, address: int) -> None:
        self._noted.append((time.time(), size, address))

    def stop(self) -> Allocations:
        """End the watch; return the releases that were noted."""
        for watch in self._watches:
            watch.detach()
        times_s = np.array([time_s for time_s, _, _ in self._noted], dtype=np.float64)
        table = np.array([row[1:] for row in self._noted], dtype=np.int64).reshape(-1, 2)
        return Allocations(times_s=times_s, deltas=-table[:, 0], addresses=table[:, 1])


@contextmanager
def _meter_cpu(watch: _Releases) -> Iterator[MemoryMeter]:
    meter = MemoryMeter(base=watch.base, peak=watch.base, times_s=np.zeros(1), bytes=np.array([watch.base]))
    start_s = time.time()
    try:
        with AllocationRecorder() as recorder:
            yield meter
    finally:
        older = watch.stop()
    times_s = np.concatenate([recorder.events.times_s, older.times_s])
    deltas = np.concatenate([recorder.events.deltas, older.deltas])
    order = np.argsort(times_s, kind="stable")
    meter.times_s = np.concatenate([[0.0], np.maximum(times_s[order] - start_s, 0.0)])
    meter.bytes = watch.base + np.concatenate([[0], np.cumsum(deltas[order])])
    addresses = np.concatenate([recorder.events.addresses, older.addresses])
    meter.addresses = np.concatenate([[0], addresses[order]])
    meter.peak = int(meter.bytes.max())


@contextmanager
def _meter_cuda(device: torch.device) -> Iterator[MemoryMeter]:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    base = torch.cuda.memory_allocated(device)
    meter = MemoryMeter(base=base, peak=base, times_s=np.zeros(1), bytes=np.array([base]))
    start_s = time.perf_counter()
    yield meter
    torch.cuda.synchronize(device)
    end_s = time.perf_counter() - start_s
    meter.peak = torch.cuda.max_memory_allocated(device)
    meter.times_s = np.array([0.0, end_s / 2, end_s])
    meter.bytes = np.array([base, meter.peak, torch.cuda.memory_allocated(device)])


def _device_of(storages: Iterable[torch.UntypedStorage]) -> torch.device:
    """The device of the storages. CPU tensors beside a GPU are ignored: they are step counters."""
    devices = {storage.device for storage in storages} or {torch.device("cpu")}
    if any(device.type == "cuda" for device in devices):
        devices.discard(torch.device("cpu"))
    if len(devices) > 1:
        raise ValueError(
            f"the resident values are on {sorted(map(str, devices))}: choose one to measure with device="
        )
    return devices.pop()

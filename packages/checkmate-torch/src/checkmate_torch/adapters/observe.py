"""Observe one call of a bound step: the bytes held between the starts of its ops.

On the CPU the profiler records every allocation of PyTorch, in order, and the bytes that were asked for. A
*mark*, an allocation of a size that no program uses, separates the ops. On CUDA each mark reads the
allocator's counters; its blocks are rounded as the graph's tensors are.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch

from checkmate_torch.api.trace import TracedModel
from checkmate_torch.api.trace_step import TracedTraining
from checkmate_torch.costs.allocations import AllocationRecorder
from checkmate_torch.ops.recompute_rules import is_random, rng_state_like
from checkmate_torch.ops.storages import allocated_bytes

__all__ = ["CpuMemory", "CudaMemory", "slack"]

_MARK = 13
"""Bytes of a mark; not a multiple of 4, so that no float32 tensor has this size."""


class CpuMemory:
    """The bytes between marks, from the recorded allocations."""

    def mark(self) -> None:
        """Separate what comes before from what comes after."""
        torch.empty(_MARK, dtype=torch.uint8)

    def __enter__(self) -> None:
        """Start recording."""
        self._recorder = AllocationRecorder()
        self._recorder.__enter__()

    def __exit__(self, *error: object) -> None:
        """Stop, and divide the recording at the marks."""
        self._recorder.__exit__(None, None, None)
        deltas = self._recorder.events.deltas
        levels = np.cumsum([0, *deltas]).tolist()
        marks = [k for k, delta in enumerate(deltas.tolist()) if delta == _MARK]
        pairs = list(pairwise(marks))
        self.peaks = [max(levels[j + 2 : k + 1]) for j, k in pairs]
        self.held = [levels[k] for _, k in pairs]
        self.left = levels[-1]


class CudaMemory:
    """The bytes between marks, as the CUDA allocator counts them."""

    def __init__(self) -> None:
        """Marks before the block are dropped at its start."""
        self._base = 0
        self._seen: list[tuple[int, int]] = []

    def __enter__(self) -> None:
        """Count from here."""
        self._base = torch.cuda.memory_allocated()
        self._seen.clear()

    def mark(self) -> None:
        """Read the counters, and reset the peak."""
        peak, now = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
        self._seen.append((peak - self._base, now - self._base))
        torch.cuda.reset_peak_memory_stats()

    def __exit__(self, *error: object) -> None:
        """Read the bytes that are still held."""
        self.peaks = [peak for peak, _ in self._seen[1:]]
        self.held = [now for _, now in self._seen[1:]]
        self.left = torch.cuda.memory_allocated() - self._base


def slack(traced: TracedModel | TracedTraining) -> tuple[int, int]:
    """Bytes by which the measured memory may be below, and above, the simulator's count.

    Below: the graph's charge for the loss, an estimate where the caller computes it. Below and above: new
    values of inputs, such as running statistics, which are held from their first run to the end of forward,
    whatever the schedule says. Above: random states for replays, which the graph charges throughout as fixed
    bytes.
    """
    graph, step = traced.graph, traced.traced if isinstance(traced, TracedModel) else traced.step.traced
    charged = () if step.boundary is None else graph.ops[step.boundary].outputs
    loss = sum(graph.tensors[t].size for t in charged)
    copied = sum(allocated_bytes(node.meta["val"]) for node in step.new_values)
    states = sum(rng_state_like(n).nbytes for n in step.nodes if n is not None and is_random(n))
    return loss + copied, copied + states

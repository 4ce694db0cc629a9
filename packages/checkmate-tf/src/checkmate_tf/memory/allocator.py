"""Predict the bytes that a program needs at its peak: live bytes, or the memory of the allocator.

The requests of the program are replayed on a simulated allocator (:mod:`checkmate_tf.memory.bfc`) that has
one region: each output is requested when its copy runs, and the workspace as one chunk. A buffer that is
written over another one keeps the chunk. All that is resident from the start is one chunk behind a gap, which
the creation of variables leaves. The places of chunks depend on details that the program does not contain, so
several replays are made, and the memory must be enough for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from itertools import product
from typing import Literal

import tensorflow as tf

from checkmate import DFGraph
from checkmate_tf.memory.bfc import GRANULE, Allocator, OutOfMemoryError
from checkmate_tf.memory.residency import Changes, changes, resident_bytes
from checkmate_tf.running.program import Program, Value
from checkmate_tf.tracing.needs import SMALL

__all__ = ["Counts", "expected_bytes"]

Counts = Literal["live", "allocator"]
"""The bytes that a budget bounds: those that are alive at once, or the memory that the allocator needs."""
_EARLY = 0.005
"""Share of the peak charged for light ops, which wait for nothing and may run early."""
_EARLIEST = 32
"""The most small tensors charged for light ops that run early; 12 were seen in 9,000 ops (DenseNet121)."""
_MARGIN = 0.04
"""Share of the allocator's memory that is added, because light ops run early and kernels request their
workspaces in pieces, differently in each step. These ran out of memory: with a margin of up to 0.008, 4 of 12
plans of a U-Net in some of 12 steps; with 0.011 to 0.026, 3 of 360 steps, all at 0.012; with 0.02, 2 of about
100 processes on a busy machine."""
_PRECISION = 0.002
"""The search for the allocator's memory ends within this share of the live bytes."""
_GAPS = (0, 1, 2)
"""Sizes of the gap in the replays, in multiples of the largest resident tensor; gaps of 2.9 MB were seen
where that tensor had 1.5 MB."""
_WORKSPACE_FIRST = frozenset({"MaxPoolGrad"})
"""Types of ops whose kernels request their workspace before their outputs, in half of the replays."""


def expected_bytes(
    program: Program, workspaces: Mapping[tf.Operation, int], graph: DFGraph, counts: Counts = "live"
) -> int:
    """The bytes that a program needs at its peak; the graph says what is resident from the start."""
    live = graph.base_size + int(resident_bytes(program, workspaces).max(initial=0))
    if counts == "live":
        return live + min(_EARLIEST * SMALL, int(_EARLY * live))
    largest = max((graph.tensors[t].size for t in graph.inputs), default=0)
    requests = list(changes(program, workspaces))
    first = frozenset(k for k, copy in enumerate(program.copies) if copy.op.type in _WORKSPACE_FIRST)
    replays = list(product((frozenset[int](), first), (n * largest for n in _GAPS)))

    def fits(limit: int) -> bool:
        return all(_fits(requests, ahead, graph.base_size, gap, limit) for ahead, gap in replays)

    return _least_limit(fits, live)


def _least_limit(fits: Callable[[int], bool], live: int) -> int:
    """The memory within which the allocator finds room for all requests, with a margin.

    ``live`` is the most bytes that are live at once.
    """
    low, high = live, 2 * live
    while not fits(high):
        low, high = high, 2 * high
    while high - low > max(_PRECISION * live, GRANULE):
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high + int(_MARGIN * high)


def _fits(changes: Sequence[Changes], ahead: Set[int], base: int, gap: int, limit: int) -> bool:
    """Whether the allocator of a device with ``limit`` bytes finds room for all requests.

    Copies in ``ahead`` request their workspace before their outputs; ``base`` bytes are resident from the
    start, behind a gap.
    """
    allocator = Allocator(limit)
    sizes: dict[Value, int] = {}
    places: dict[Value, int] = {}
    try:
        if base:
            before = allocator.allocate(max(gap, 1))
            allocator.allocate(base)
            allocator.release(before)
        for k, (made, over, workspace, freed) in enumerate(changes):
            scratch = allocator.allocate(workspace) if workspace and k in ahead else None
            sizes |= made
            for b, size in made.items():
                if over in places and size == sizes[over]:
                    places[b] = places.pop(over)
                elif size:
                    places[b] = allocator.allocate(size)
            if workspace and scratch is None:
                scratch = allocator.allocate(workspace)
            if scratch is not None:
                allocator.release(scratch)
            for b in freed & places.keys():
                allocator.release(places.pop(b))
    except OutOfMemoryError:
        return False
    return True

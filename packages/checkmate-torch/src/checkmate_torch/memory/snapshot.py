"""Memory over time as PyTorch's memory viewer reads it: a list of allocations and frees with addresses.

The layout is that of ``torch.cuda.memory._snapshot()``: ``device_traces`` holds the events of each device in
order, ``segments`` the blocks that are allocated at the end. The viewer, pytorch.org/memory_viz, opens
pickles of such values, which are plain lists, dictionaries, texts and numbers. We write one, and read none.

A schedule has no addresses: each tensor gets the first gap that it fits in.
"""

from __future__ import annotations

import pickle  # noqa: TID251 - the only format that the viewer opens; it is written, never read
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checkmate import Timeline
from checkmate.plugins import replace_file

if TYPE_CHECKING:
    from checkmate_torch.costs.meter import MemoryMeter

__all__ = ["MemoryVizSnapshot", "measured_snapshot", "predicted_snapshot"]

_PROTOCOL = 4
"""The pickle protocol: the default of Python 3.8 to 3.13, in which PyTorch writes its own snapshots."""

_ALIGNED = 512
_FIRST = 1 << 20
_UNKNOWN = "unknown"
"""A category that the viewer requires in every snapshot with categories."""

Snapshot = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryVizSnapshot:
    """The exporter of :func:`predicted_snapshot`."""

    def write(self, timeline: Timeline, file: Path, *, budget: int | None = None) -> None:
        """Write the snapshot as a pickle, whole or not at all. The format has no place for a budget."""
        replace_file(file, pickle.dumps(predicted_snapshot(timeline), protocol=_PROTOCOL))


def predicted_snapshot(timeline: Timeline, kinds: Sequence[str] = ()) -> Snapshot:
    """The allocations and frees of a schedule, step by step, as the simulator counts them.

    Args:
        timeline: the simulator's result.
        kinds: a kind for each tensor, which the viewer shows as a colour; default inputs, forward, backward.

    Returns:
        A dictionary of plain values. ``torch.cuda._memory_viz.trace_plot(snapshot)`` makes a page of it,
        which loads its script from the network.

    >>> from checkmate import DFGraph, Schedule, simulate
    >>> chain = DFGraph.from_nodes(cost=[1, 1], size=[4, 8], deps=[[], [0]], names=["a", "b"])
    >>> snapshot = predicted_snapshot(simulate(chain, Schedule.from_sequence(chain, [0, 1])))
    >>> [(e["action"], e["size"], e["frames"][0]["name"]) for e in snapshot["device_traces"][0]]
    ...     # doctest: +NORMALIZE_WHITESPACE
    [('alloc', 0, 'always resident'), ('alloc', 4, 'a'), ('alloc', 8, 'b'),
     ('free_requested', 4, 'a'), ('free_completed', 4, 'a')]
    """
    graph, arena = timeline.graph, _Arena()
    names = list(kinds) or _passes(timeline)
    resident: dict[int, int] = {}
    arena.allocate(graph.fixed_size, "always resident", _UNKNOWN)
    for t in graph.inputs:
        resident[t] = arena.allocate(graph.tensors[t].size, graph.tensors[t].name, names[t])
    seen: set[int] = set()
    for step, code in enumerate(timeline.schedule.codes.tolist()):
        if code < 0:
            if ~code in resident:  # else an op allocated in its place
                arena.free(resident.pop(~code))
            continue
        for t in timeline.reused_at(step):
            arena.free(resident.pop(t))
        op, again = graph.ops[code], " (again)" if code in seen else ""
        seen.add(code)
        made = {
            t: arena.allocate(graph.tensors[t].size, f"{graph.tensors[t].name}{again}", names[t])
            for t in op.outputs
        }
        if op.workspace:
            arena.free(arena.allocate(op.workspace, f"{op.name}: workspace", "workspace"))
        for t in op.outputs:
            if t in resident:  # the older copy
                arena.free(resident[t])
        resident |= made
    return arena.snapshot()


def measured_snapshot(meter: MemoryMeter) -> Snapshot:
    """The allocations and frees that a meter saw on the CPU.

    For CUDA there is PyTorch's ``torch.cuda.memory._snapshot()``. The result is as from
    :func:`predicted_snapshot`.

    Args:
        meter: a meter whose block has ended.

    Raises:
        ValueError: if the meter did not measure the CPU.
    """
    if len(meter.addresses) != len(meter.bytes):
        raise ValueError(
            "on CUDA PyTorch records its own snapshots: torch.cuda.memory._record_memory_history(), then "
            "torch.cuda.memory._snapshot()"
        )
    events: list[dict[str, Any]] = []
    alive: dict[int, int] = {}
    deltas = (meter.bytes[1:] - meter.bytes[:-1]).tolist()
    for address, delta in zip(meter.addresses[1:].tolist(), deltas, strict=True):
        if delta > 0:
            alive[address] = delta
        else:
            alive.pop(address, None)
        events += _events(address, delta, [])
    blocks = [(address, size, ()) for address, size in sorted(alive.items())]
    return {"device_traces": [events], "segments": _segments(blocks)}


class _Arena:
    """Gives tensors addresses, first fit, and records their allocations and frees."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.blocks: list[tuple[int, int]] = []  # (address, occupied bytes), by address
        self.alive: dict[int, dict[str, Any]] = {}  # address → the event that allocated it

    def allocate(self, size: int, name: str, category: str) -> int:
        """Allocate ``size`` bytes; returns their address."""
        room, address, index = max(-(-size // _ALIGNED), 1) * _ALIGNED, _FIRST, 0
        for index, (start, length) in enumerate([*self.blocks, (1 << 62, 0)]):  # noqa: B007 - used below
            if start - address >= room:
                break
            address = start + length
        self.blocks.insert(index, (address, room))
        frames = [{"name": name, "filename": category, "line": 0}]
        (event,) = _events(address, size, frames)
        self.events.append(event | {"category": category})
        self.alive[address] = event
        return address

    def free(self, address: int) -> None:
        """Free the block at an address."""
        event = self.alive.pop(address)
        self.blocks.remove(next(block for block in self.blocks if block[0] == address))
        self.events += _events(address, -event["size"], event["frames"])

    def snapshot(self) -> Snapshot:
        """The events so far, and the blocks that are allocated now."""
        blocks = [(a, self.alive[a]["size"], self.alive[a]["frames"]) for a, _ in self.blocks]
        return {"device_traces": [self.events], "segments": _segments(blocks)}


def _events(address: int, delta: int, frames: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One event for an allocation, two for a release."""
    event = {"addr": address, "size": abs(delta), "stream": 0, "frames": list(frames)}
    actions = ("alloc",) if delta >= 0 else ("free_requested", "free_completed")
    return [{"action": action, **event} for action in actions]


def _segments(blocks: Sequence[tuple[int, int, Sequence[dict[str, Any]]]]) -> list[dict[str, Any]]:
    """One segment from the first block to the end of the last, gaps included."""
    if not blocks:
        return []
    end = blocks[-1][0] + max(blocks[-1][1], 1)
    return [
        {
            "device": 0,
            "address": blocks[0][0],
            "total_size": end - blocks[0][0],
            "allocated_size": sum(size for _, size, _ in blocks),
            "active_size": sum(size for _, size, _ in blocks),
            "stream": 0,
            "segment_type": "large",
            "blocks": list(_blocks(blocks)),
        }
    ]


def _blocks(blocks: Sequence[tuple[int, int, Sequence[dict[str, Any]]]]) -> Iterator[dict[str, Any]]:
    """The blocks, and a block for each gap between them."""
    at = blocks[0][0]
    for address, size, frames in blocks:
        if address > at:
            yield {"size": address - at, "requested_size": 0, "state": "inactive", "frames": []}
        yield {"size": size, "requested_size": size, "state": "active_allocated", "frames": list(frames)}
        at = address + size


def _passes(timeline: Timeline) -> list[str]:
    graph = timeline.graph
    of = {t: "backward" if op.backward else "forward" for op in graph.ops for t in op.outputs}
    return [of.get(t, "inputs") for t in range(graph.n_tensors)]

"""What CUDA's allocator did in one step: allocations and frees in order, as columns of plain values.

``torch.cuda.memory._snapshot()`` has a dictionary for each event; columns are a tenth of that, and JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

__all__ = ["columns", "peak_of", "recorded"]

_LETTERS = {
    "alloc": "a",
    "free_requested": "r",
    "free_completed": "f",
    "segment_alloc": "A",
    "segment_free": "F",
}
"""By action of PyTorch; others are an o."""


def recorded(step: Callable[[], object], device: torch.device) -> Mapping[str, Any]:
    """The allocator's events while a step runs on a GPU, as :func:`columns`, and bytes held before it."""
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.memory._record_memory_history(context=None, clear_history=True)
    try:
        step()
        torch.cuda.synchronize(device)
        events = torch.cuda.memory._snapshot()["device_traces"][device.index or 0]
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    return {"before": before, **columns(events)}


def columns(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """``actions``, a letter for each event; ``addresses``, the lowest of which is 0; ``sizes`` in bytes."""
    lowest = min((event["addr"] for event in events), default=0)
    return {
        "actions": "".join(_LETTERS.get(event["action"], "o") for event in events),
        "addresses": [event["addr"] - lowest for event in events],
        "sizes": [event["size"] for event in events],
    }


def peak_of(trace: Mapping[str, Any]) -> int:
    """The most bytes that are held at once: those before the step, and what it allocates and frees."""
    held = most = trace.get("before", 0)
    for action, size in zip(trace["actions"], trace["sizes"], strict=True):
        held += {"a": size, "f": -size}.get(action, 0)
        most = max(most, held)
    return most

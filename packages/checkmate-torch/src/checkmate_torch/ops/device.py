"""The device that a step runs on: what identifies it in tables of measured ops, free memory, captures."""

from __future__ import annotations

import torch

from checkmate import UnsupportedModelError
from checkmate.cost import processor
from checkmate.framework import available_memory, unknown_memory

__all__ = ["machine_of", "obtainable_bytes", "refuse_graph_capture"]


def machine_of(device: torch.device) -> dict[str, str]:
    """What decides how long an op takes, besides the op: device, release of PyTorch, threads."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    return {"device": name, "torch": str(torch.__version__), "threads": str(torch.get_num_threads())}


def obtainable_bytes(device: torch.device) -> int:
    """Bytes that this process can still allocate on a device.

    On CUDA: the free memory of the device, and the memory that PyTorch's allocator has reserved and not given
    out. On the CPU of a Linux system: :func:`checkmate.framework.available_memory`.

    Raises:
        BudgetError: on other devices and systems.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    if device.type != "cpu":
        raise unknown_memory(device)
    return available_memory()


def refuse_graph_capture() -> None:
    """Raise if the current stream is being captured as a CUDA graph.

    Raises:
        UnsupportedModelError: then.
    """
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():  # type: ignore[no-untyped-call]
        raise UnsupportedModelError(
            "a planned step can't be captured as a CUDA graph: recomputation restores the state of the "
            "random generator, which a captured stream can't do, and the graph keeps its memory for ever. "
            "Call the model outside of torch.cuda.graph, or capture the plain model"
        )

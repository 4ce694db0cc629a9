"""What a device has left: the budget "auto", and what an optimizer is going to add.

    auto = resident + obtainable · (1 − headroom)

*Resident* is what the step holds already: parameters, buffers, the batch. *Obtainable* is what this process
could still allocate: free memory, and what its own allocator holds unused. The head-room is for what no plan
sees: fragmentation, the scratch memory of libraries, other processes.
"""

from __future__ import annotations

import copy

import torch
from torch.optim import Optimizer

from checkmate import BudgetError
from checkmate.available import AUTO, AUTO_ADVICE, HEADROOM, available_memory
from checkmate_torch.storages import storages_of

__all__ = ["AUTO", "HEADROOM", "auto_budget", "obtainable_bytes", "optimizer_bytes"]


def auto_budget(device: torch.device, resident: int) -> int:
    """Bytes that a step may hold on a device now.

    Args:
        device: the CPU or a CUDA device.
        resident: bytes that the step will count and that are allocated already.

    Raises:
        BudgetError: if it is not known how much memory the device has left.
    """
    return resident + int(obtainable_bytes(device) * (1 - HEADROOM))


def obtainable_bytes(device: torch.device) -> int:
    """Bytes that this process could still allocate on a device.

    On CUDA: free memory of the device, and what PyTorch's allocator has reserved and not given out. On Linux'
    CPU: what the kernel calls available, or what is left of the control group's limit, if that is less.

    Raises:
        BudgetError: on other devices and systems.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    if device.type != "cpu":
        raise BudgetError(f"it is not known how much memory {device} has left: {AUTO_ADVICE}")
    return available_memory()


def optimizer_bytes(optimizer: Optimizer) -> int:
    """Bytes of an optimizer's state once it has taken its first step.

    A copy of it takes one step on tensors without memory, so that nothing is allocated or changed; for Adam,
    two moments for each parameter. What the step itself allocates and releases is not in it.

    Raises:
        BudgetError: if the optimizer can't take such a step, e.g. because it wants a closure.

    >>> layer = torch.nn.Linear(16, 16, bias=False)
    >>> optimizer_bytes(torch.optim.Adam(layer.parameters())) // layer.weight.nbytes
    2
    """
    memo: dict[int, object] = {}
    held = [v for state in optimizer.state.values() for v in state.values()]
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    try:
        for value in (*held, *parameters):
            if isinstance(value, torch.Tensor) and value.dim():  # counts of steps are read: they stay real
                memo[id(value)] = _without_memory(value)
        twin = copy.deepcopy(optimizer, memo)
        for group in twin.param_groups:  # other kernels, the same state
            group.update({name: False for name in ("fused", "foreach", "capturable") if name in group})
        type(twin).step(twin)  # not twin.step, which a scheduler may have replaced by that of the original
    except Exception as error:
        raise BudgetError(
            f"how many bytes {type(optimizer).__name__} will keep can't be foreseen ({error}): "
            "say reserve= in its place"
        ) from error
    return sum(storage.nbytes() for storage in storages_of(dict(twin.state)).values())


def _without_memory(value: torch.Tensor) -> torch.Tensor:
    """The same on the device ``meta``, with a gradient if it can have one."""
    like = torch.empty_like(value, device="meta").requires_grad_(value.requires_grad)
    like.grad = torch.empty_like(like) if value.requires_grad else None
    return like

"""What a device has left: the budget "auto".

    auto = resident + obtainable · (1 − headroom)

*Resident* is what the step holds already: variables, the batch. *Obtainable* is what this process could still
allocate. The head-room is for what no plan sees: fragmentation, the scratch memory of libraries, other
processes; TensorFlow's allocators hand out chunks that are somewhat larger than what was asked for.
"""

from __future__ import annotations

import tensorflow as tf

from checkmate import BudgetError
from checkmate.available import AUTO, AUTO_ADVICE, HEADROOM, available_memory
from checkmate_tf.device import memory_limit

__all__ = ["AUTO", "HEADROOM", "auto_budget", "obtainable_bytes"]


def auto_budget(device: str, resident: int) -> int:
    """Bytes that a step may hold on a device now.

    Args:
        device: ``"CPU:0"`` or ``"GPU:k"``.
        resident: bytes that the step will count and that are allocated already.

    Raises:
        BudgetError: if it is not known how much memory the device has left.

    >>> auto_budget("CPU:0", 4096) > 4096
    True
    """
    return resident + int(obtainable_bytes(device) * (1 - HEADROOM))


def obtainable_bytes(device: str) -> int:
    """Bytes that this process could still allocate on a device.

    On a GPU: TensorFlow's limit for it, which is most of its memory or what
    ``tf.config.set_logical_device_configuration`` says, less what is in use. On the CPU: what the system has
    left, or the control group that this process is in; TensorFlow's own limit for it is no true figure.

    Raises:
        BudgetError: if that is not known.
    """
    if device.startswith("CPU"):
        return available_memory()
    try:
        in_use = int(tf.config.experimental.get_memory_info(device)["current"])
        return max(memory_limit(device) - in_use, 0)
    except (ValueError, StopIteration) as error:
        raise BudgetError(f"it is not known how much memory {device} has left: {AUTO_ADVICE}") from error

"""The device that ops run on: its key in tables of measured ops, and its free memory."""

from __future__ import annotations

import os
from collections.abc import Iterable

import tensorflow as tf

from checkmate.cost import processor
from checkmate.framework import available_memory, unknown_memory

__all__ = [
    "device_of_this_machine",
    "devices_of",
    "is_limited",
    "machine_of",
    "memory_limit",
    "obtainable_bytes",
]


def device_of_this_machine() -> str:
    """``"GPU:0"`` if TensorFlow sees one, else ``"CPU:0"``: TensorFlow's choice for ops without a device."""
    return "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"


def devices_of(ops: Iterable[tf.Operation]) -> list[str]:
    """The devices that ops are placed on, such as ``"CPU:0"``; without a device, TensorFlow's choice."""
    specs = {tf.DeviceSpec.from_string(device) for device in {op.device for op in ops}}
    named = {f"{spec.device_type}:{spec.device_index or 0}" for spec in specs if spec.device_type}
    chosen = {device_of_this_machine()} if any(not spec.device_type for spec in specs) else set()
    return sorted(named | chosen)


def machine_of(device: str) -> dict[str, str]:
    """The properties of a machine that an op's run time and its measured bytes depend on."""
    if device.startswith("GPU"):
        gpu = tf.config.list_physical_devices("GPU")[int(device.partition(":")[2])]
        name = str(tf.config.experimental.get_device_details(gpu).get("device_name", "GPU"))
    else:
        name = processor()
    settings = ("TF_ENABLE_ONEDNN_OPTS", "TF_CPU_ALLOCATOR_USE_BFC")
    return {
        "device": name,
        "tensorflow": str(tf.__version__),
        "threads": str(tf.config.threading.get_intra_op_parallelism_threads() or os.cpu_count()),
        **{setting: os.environ.get(setting, "") for setting in settings},
    }


def is_limited(device: str) -> bool:
    """Whether a device limits TensorFlow's allocator, so that a step fails if it gets no chunk.

    True on a GPU. On a CPU the allocator gets more memory, unless the environment limits it.
    """
    return device.startswith("GPU") or all(
        os.environ.get(name, "0") not in ("", "0")
        for name in ("TF_CPU_ALLOCATOR_USE_BFC", "TF_CPU_BFC_MEM_LIMIT_IN_MB")
    )


def memory_limit(device: str) -> int:
    """The most bytes that TensorFlow takes of a device; for a CPU the figure is meaningless."""
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        limits = {found.name: found.memory_limit_bytes for found in session.list_devices()}
    return next(int(limit) for name, limit in limits.items() if name.endswith(f"/device:{device}"))


def obtainable_bytes(device: str) -> int:
    """Bytes that this process can still allocate on a device.

    On a GPU: TensorFlow's limit for it, which is most of its memory or the value of
    ``tf.config.set_logical_device_configuration``, minus the bytes in use. On the CPU of a Linux system:
    :func:`checkmate.framework.available_memory`.

    Raises:
        BudgetError: if that is unknown.
    """
    if device.startswith("CPU"):
        return available_memory()
    try:
        in_use = int(tf.config.experimental.get_memory_info(device)["current"])
        return max(memory_limit(device) - in_use, 0)
    except (ValueError, StopIteration) as error:
        raise unknown_memory(device) from error

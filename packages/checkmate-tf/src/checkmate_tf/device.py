"""Where ops run on this machine, and what decides how long they take there."""

from __future__ import annotations

import os

import tensorflow as tf

from checkmate.cost.measured import processor

__all__ = ["device_of_this_machine", "machine_of", "memory_limit"]


def device_of_this_machine() -> str:
    """``"GPU:0"`` if TensorFlow sees one, else ``"CPU:0"``: where it puts ops that nobody has placed."""
    return "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"


def machine_of(device: str) -> dict[str, str]:
    """What decides how long an op takes and what of its memory is seen, beside the op."""
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


def memory_limit(device: str) -> int:
    """Bytes that TensorFlow will take at most of a device; of a CPU it knows no true figure."""
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        limits = {found.name: found.memory_limit_bytes for found in session.list_devices()}
    return next(int(limit) for name, limit in limits.items() if name.endswith(f"/device:{device}"))

"""The roofline of a traced graph: each op at the peak of the number format that it computes in.

The law and the table of devices are the core's (:class:`checkmate.cost.Roofline`); here each op finds its
row, and a CPU, which no table lists, is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

import tensorflow as tf

from checkmate import DFGraph
from checkmate.cost import MeasuredOps, Roofline, device_in_table, in_formats, measured_roofline
from checkmate_tf.device import device_of_this_machine, machine_of, memory_limit
from checkmate_tf.flops import flops_of, number_format

__all__ = ["roofline"]


def roofline(
    counted: DFGraph, groups: Sequence[Sequence[tf.Operation]], device: str = "", *, on_disk: bool = True
) -> DFGraph:
    """A graph with FLOPs as costs, in seconds on a device.

    Args:
        counted: the graph; its cost unit is ``"flop"``.
        groups: the TensorFlow ops of each op; it computes in the format of the largest. None costs nothing.
        device: a name of the table :data:`checkmate.cost.DEVICES`; ``""`` = this machine's.
        on_disk: whether the measured peaks of a CPU are kept on disk, and taken from there.

    Raises:
        CostError: if the device is not in the table.
    """
    formats = [number_format(max(group, key=flops_of)) if group else None for group in groups]
    here = device_of_this_machine()
    if not device and here.startswith("CPU"):
        return in_formats(counted, formats, lambda form: _of_this_cpu(on_disk))
    name = device or device_in_table(machine_of(here)["device"], memory_limit(here) / 1e9)
    return in_formats(counted, formats, partial(Roofline.nearest, name))


@cache
def _of_this_cpu(on_disk: bool) -> Roofline:
    with tf.init_scope(), tf.device("CPU:0"):
        return measured_roofline(MeasuredOps(machine_of("CPU:0")), "negative", _ready, on_disk=on_disk)


def _ready(side: int, numbers: int) -> tuple[Callable[[], object], Callable[[], object]]:
    square, source = tf.ones([side, side]), tf.zeros([numbers])
    return lambda: tf.linalg.matmul(square, square), lambda: tf.negative(source)

"""The roofline of a traced graph: each op at the peak of the number format that it computes in.

The law and the table of devices are the core's (:class:`checkmate.cost.Roofline`); here each op finds its
row, and a CPU, which no table lists, is measured: one product of matrices and one pass over
memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache

import tensorflow as tf

from checkmate import DFGraph
from checkmate.cost import DEVICES, MeasuredOps, OpProfile, Roofline, device_in_table, with_costs
from checkmate_tf.device import device_of_this_machine, machine_of, memory_limit
from checkmate_tf.flops import flops_of, number_format

__all__ = ["roofline"]

_SIDE = 768
_COPIED = 2**26
_RUNS = 5
_PRODUCT, _COPY = f"product of float32 matrices, {_SIDE} square", f"negative of {_COPIED} bytes"
"""Their names among the measured ops."""


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
    formats = [number_format(max(group, key=flops_of)) if group else "fp32" for group in groups]
    here = device_of_this_machine()
    if not device and here.startswith("CPU"):
        priced = dict.fromkeys(formats, _of_this_cpu(on_disk).annotate(counted))
    else:
        name = device or device_in_table(machine_of(here)["device"], memory_limit(here) / 1e9)
        priced = {form: _known(name, form).annotate(counted) for form in dict.fromkeys(formats)}
    costs = (priced[form].ops[v].cost if groups[v] else 0.0 for v, form in enumerate(formats))
    return with_costs(counted, costs, "s")


def _known(device: str, form: str) -> Roofline:
    """The device's row for a format; for one that it has no unit for, ordinary arithmetic."""
    figures = next((d for name, d in DEVICES.items() if name.lower() == device.lower()), None)
    return Roofline.of(device, form if figures is None or form in figures.flops_per_s else "fp32")


@cache
def _of_this_cpu(on_disk: bool) -> Roofline:
    """The peaks of float32 that this machine reaches: a product of square matrices, and a copy."""
    table = MeasuredOps(machine_of("CPU:0"))
    known = table.known() if on_disk else {}
    if not known.keys() >= {_PRODUCT, _COPY}:
        with tf.init_scope(), tf.device("CPU:0"):
            square, source = tf.ones([_SIDE, _SIDE]), tf.zeros([_COPIED // 4])
            known = {
                _PRODUCT: OpProfile(seconds=_fastest(lambda: tf.linalg.matmul(square, square)), workspace=0),
                _COPY: OpProfile(seconds=_fastest(lambda: tf.negative(source)), workspace=0),
            }
        if on_disk:
            table.add(known)
    return Roofline(
        flops_per_s=2 * _SIDE**3 / known[_PRODUCT].seconds, bytes_per_s=2 * _COPIED / known[_COPY].seconds
    )


def _fastest(run: Callable[[], object]) -> float:
    seconds = []
    for _ in range(_RUNS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)

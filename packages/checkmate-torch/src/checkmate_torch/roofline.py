"""The roofline of a traced graph: each op at the peak of the number format that it computes in.

The law and the table of devices are the core's (:class:`checkmate.cost.Roofline`); here each op finds its
row, and a CPU, which no table lists, is measured: one product of matrices and one copy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from checkmate import DFGraph
from checkmate.cost import DEVICES, MeasuredOps, OpProfile, Roofline, device_in_table, with_costs
from checkmate_torch.flops import number_format
from checkmate_torch.profile import machine_of

__all__ = ["roofline"]

_SIDE = 768
_COPIED = 2**26
_RUNS = 5
_PRODUCT, _COPY = f"product of float32 matrices, {_SIDE} square", f"copy of {_COPIED} bytes"
"""Their names among the measured ops."""


def roofline(
    counted: DFGraph, nodes: Sequence[Node | None], device: str = "", *, on_disk: bool = True
) -> DFGraph:
    """A graph with FLOPs as costs, in seconds on a device.

    Args:
        counted: the graph; its cost unit is ``"flop"``.
        nodes: the FX node of each op; None costs nothing.
        device: a name of the table :data:`checkmate.cost.DEVICES`; ``""`` = the one that the tensors are on.
        on_disk: whether the measured peaks of a CPU are kept on disk, and taken from there.

    Raises:
        CostError: if the device is not in the table.
    """
    formats = [number_format(node) if node is not None else "fp32" for node in nodes]
    cuda = _cuda_of(nodes)
    if not device and cuda is None:
        priced = dict.fromkeys(formats, _of_this_cpu(on_disk).annotate(counted))
    else:
        name = device or device_in_table(torch.cuda.get_device_name(cuda), _gigabytes(cuda))
        priced = {form: _known(name, form).annotate(counted) for form in dict.fromkeys(formats)}
    costs = (priced[form].ops[v].cost if nodes[v] is not None else 0.0 for v, form in enumerate(formats))
    return with_costs(counted, costs, "s")


def _known(device: str, form: str) -> Roofline:
    """The device's row for a format; for one that it has no unit for, ordinary arithmetic."""
    figures = next((d for name, d in DEVICES.items() if name.lower() == device.lower()), None)
    return Roofline.of(device, form if figures is None or form in figures.flops_per_s else "fp32")


def _cuda_of(nodes: Sequence[Node | None]) -> torch.device | None:
    """The GPU that a graph's tensors are on, if any."""
    shown = (v for node in nodes if node is not None for v in tree_leaves(node.meta.get("val")))
    devices = (v.device for v in shown if isinstance(v, torch.Tensor))
    return next((device for device in devices if device.type == "cuda"), None)


def _gigabytes(cuda: torch.device | None) -> float:
    return float(torch.cuda.get_device_properties(cuda).total_memory) / 1e9


@cache
def _of_this_cpu(on_disk: bool) -> Roofline:
    """The peaks of float32 that this machine reaches: a product of square matrices, and a copy."""
    table = MeasuredOps(machine_of(torch.device("cpu")))
    known = table.known() if on_disk else {}
    if not known.keys() >= {_PRODUCT, _COPY}:
        with torch._subclasses.fake_tensor.unset_fake_temporarily(), torch.no_grad():
            a, b = torch.ones(_SIDE, _SIDE), torch.ones(_SIDE, _SIDE)
            source, target = torch.zeros(_COPIED // 4), torch.zeros(_COPIED // 4)
            known = {
                _PRODUCT: OpProfile(seconds=_fastest(lambda: torch.mm(a, b)), workspace=0),
                _COPY: OpProfile(seconds=_fastest(lambda: target.copy_(source)), workspace=0),
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

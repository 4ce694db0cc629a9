"""The roofline of a traced graph: each op at the peak of the number format that it computes in.

The law and the table of devices are the core's (:class:`checkmate.cost.Roofline`); here each op finds its
row, and a CPU, which no table lists, is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

import torch
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from checkmate import DFGraph
from checkmate.cost import MeasuredOps, Roofline, device_in_table, in_formats, measured_roofline
from checkmate_torch.flops import number_format
from checkmate_torch.profile import machine_of

__all__ = ["roofline"]


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
    formats = [number_format(node) if node is not None else None for node in nodes]
    cuda = _cuda_of(nodes)
    if not device and cuda is None:
        return in_formats(counted, formats, lambda form: _of_this_cpu(on_disk))
    name = device or device_in_table(torch.cuda.get_device_name(cuda), _gigabytes(cuda))
    return in_formats(counted, formats, partial(Roofline.nearest, name))


def _cuda_of(nodes: Sequence[Node | None]) -> torch.device | None:
    """The GPU that a graph's tensors are on, if any."""
    shown = (v for node in nodes if node is not None for v in tree_leaves(node.meta.get("val")))
    devices = (v.device for v in shown if isinstance(v, torch.Tensor))
    return next((device for device in devices if device.type == "cuda"), None)


def _gigabytes(cuda: torch.device | None) -> float:
    return float(torch.cuda.get_device_properties(cuda).total_memory) / 1e9


@cache
def _of_this_cpu(on_disk: bool) -> Roofline:
    with torch._subclasses.fake_tensor.unset_fake_temporarily(), torch.no_grad():
        return measured_roofline(
            MeasuredOps(machine_of(torch.device("cpu"))), "copy", _ready, on_disk=on_disk
        )


def _ready(side: int, numbers: int) -> tuple[Callable[[], object], Callable[[], object]]:
    a, b = torch.ones(side, side), torch.ones(side, side)
    source, target = torch.zeros(numbers), torch.zeros(numbers)
    return lambda: torch.mm(a, b), lambda: target.copy_(source)

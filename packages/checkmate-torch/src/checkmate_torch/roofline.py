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

from checkmate import CostError, DFGraph
from checkmate.cost import DEVICES, Roofline, with_costs
from checkmate_torch.flops import number_format

__all__ = ["device_in_table", "roofline"]

_SIDE = 768
_COPIED = 2**26
_RUNS = 5


def roofline(counted: DFGraph, nodes: Sequence[Node | None], device: str = "") -> DFGraph:
    """A graph with FLOPs as costs, in seconds on a device.

    Args:
        counted: the graph; its cost unit is ``"flop"``.
        nodes: the FX node of each op; None costs nothing.
        device: a name of the table :data:`checkmate.cost.DEVICES`; ``""`` = the one that the tensors are on.

    Raises:
        CostError: if the device is not in the table.
    """
    formats = [number_format(node) if node is not None else "fp32" for node in nodes]
    if not device and not _on_cuda(nodes):
        priced = dict.fromkeys(formats, _of_this_cpu().annotate(counted))
    else:
        name = device or device_in_table(torch.cuda.get_device_name(), _gigabytes())
        priced = {form: _known(name, form).annotate(counted) for form in dict.fromkeys(formats)}
    costs = (priced[form].ops[v].cost if nodes[v] is not None else 0.0 for v, form in enumerate(formats))
    return with_costs(counted, costs, "s")


def device_in_table(name: str, gigabytes: float) -> str:
    """The name in the table of the device that the driver calls so; of several, the nearest in memory.

    >>> device_in_table("NVIDIA A100-SXM4-80GB", 79.3), device_in_table("NVIDIA H200", 139.8)
    ('A100-80GB', 'H200-141GB')

    Raises:
        CostError: if the table has none.
    """
    chip = {entry: entry.partition("-") for entry in DEVICES}
    found = [entry for entry, (model, _, _) in chip.items() if model in name.replace("-", " ").split()]
    if not found:
        raise CostError(
            f"no roofline is known for {name!r}: name one of {[f'roofline-{entry}' for entry in DEVICES]}, "
            "pass checkmate.cost.Roofline(flops_per_s=…, bytes_per_s=…), or use cost_model='profiled'"
        )
    return min(found, key=lambda entry: abs(float(chip[entry][2].removesuffix("GB")) - gigabytes))


def _known(device: str, form: str) -> Roofline:
    """The device's row for a format; for one that it has no unit for, ordinary arithmetic."""
    figures = next((d for name, d in DEVICES.items() if name.lower() == device.lower()), None)
    return Roofline.of(device, form if figures is None or form in figures.flops_per_s else "fp32")


def _on_cuda(nodes: Sequence[Node | None]) -> bool:
    shown = (v for node in nodes if node is not None for v in tree_leaves(node.meta.get("val")))
    return any(isinstance(v, torch.Tensor) and v.device.type == "cuda" for v in shown)


def _gigabytes() -> float:
    return float(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory) / 1e9


@cache
def _of_this_cpu() -> Roofline:
    """The peaks of float32 that this process reaches: a product of square matrices, and a copy."""
    with torch._subclasses.fake_tensor.unset_fake_temporarily(), torch.no_grad():
        a, b = torch.ones(_SIDE, _SIDE), torch.ones(_SIDE, _SIDE)
        source, target = torch.zeros(_COPIED // 4), torch.zeros(_COPIED // 4)
        return Roofline(
            flops_per_s=2 * _SIDE**3 / _fastest(lambda: torch.mm(a, b)),
            bytes_per_s=2 * _COPIED / _fastest(lambda: target.copy_(source)),
        )


def _fastest(run: Callable[[], object]) -> float:
    seconds = []
    for _ in range(_RUNS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)

"""The price of each op of a traced step: cost models over what a framework knows of its ops.

    "profiled"   seconds: each distinct op is run on this device
    "flops"      floating-point operations, from shapes alone
    "roofline"   seconds, from FLOPs, bytes and the peaks of this device; or "roofline-A100-80GB"
    any other    an installed cost model, or an object with ``annotate``: it gets the graph in FLOPs

Costs decide what is recomputed; workspaces decide what fits. Workspaces can only be measured: ``"profiled"``
measures them with the costs, other cost models on request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from checkmate.cost import Roofline, device_in_table, in_formats, with_costs
from checkmate.model.graph import DFGraph
from checkmate.plugins import CostModel, annotated, checked_cost_model

__all__ = ["Prices", "price"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What a framework knows of the ops of one traced graph; each function is called only if it is needed.

    Attributes:
        measured: (graph) ↦ the graph with measured seconds and workspaces.
        flops: floating-point operations of each op.
        formats: number format of each op (:func:`checkmate.cost.in_formats`); None = the op costs nothing.
        gpu: name and gigabytes of the GPU that the graph runs on; None = it runs on the CPU.
        cpu: the roofline of this CPU.
    """

    measured: Callable[[DFGraph], DFGraph]
    flops: Callable[[], Sequence[float]]
    formats: Callable[[], Sequence[str | None]]
    gpu: Callable[[], tuple[str, float] | None]
    cpu: Callable[[], Roofline]


def price(graph: DFGraph, prices: Prices, cost_model: str | CostModel, *, workspaces: bool) -> DFGraph:
    """The graph with the costs of a cost model.

    Args:
        graph: without costs.
        prices: of its ops.
        cost_model: a name, see above, or a cost model.
        workspaces: whether they are measured where the cost model measures nothing.

    Raises:
        CostError: if the cost model can't price this graph, e.g. for a device that is in no table.
        PluginError: if there is no cost model of this name.
        ProfilerBusyError: inside a profiler or a memory meter.
    """
    cost_model = checked_cost_model(cost_model)
    if cost_model == "profiled" or workspaces:
        graph = prices.measured(graph)
    if cost_model == "profiled":
        return graph
    counted = with_costs(graph, prices.flops(), "flop")
    if cost_model == "flops":
        return counted
    if isinstance(cost_model, str) and (cost_model == "roofline" or cost_model.startswith("roofline-")):
        return _in_seconds(counted, prices, cost_model.removeprefix("roofline").removeprefix("-"))
    return annotated(cost_model, counted)


def _in_seconds(counted: DFGraph, prices: Prices, device: str) -> DFGraph:
    """A graph in FLOPs, priced by the roofline of a device; ``""`` = the one that it runs on."""
    here = prices.gpu() if not device else None
    if not device and here is None:
        return in_formats(counted, prices.formats(), lambda _format: prices.cpu())
    name = device_in_table(*here) if here is not None else device
    return in_formats(counted, prices.formats(), partial(Roofline.nearest, name))

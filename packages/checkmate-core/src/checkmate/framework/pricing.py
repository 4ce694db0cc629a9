"""The price of each op of a traced step: cost models over what a framework knows of its ops.

    "profiled"   seconds: each distinct op is run on this device
    "flops"      floating-point operations, from shapes alone
    "roofline"   seconds, from FLOPs, bytes and the peaks of this device; or "roofline-A100-80GB"
    any other    an installed cost model, or an object with ``annotate``: it gets the graph in FLOPs

Costs decide what is recomputed; workspaces decide what fits. Workspaces can only be measured: ``"profiled"``
measures them with the costs, other cost models on request.

Two ops of the same layout (function, shapes, strides, dtypes) cost the same on the same machine, so that each
layout is measured once in a process and, through :class:`checkmate.cost.MeasuredOps`, once on a machine. If
the runs of an op differed much, as on a busy machine, a later process measures it again, twice at most.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TypeVar

from checkmate.cost import MeasuredOps, OpProfile, Roofline, device_in_table, in_formats, with_costs
from checkmate.errors import PluginError, ProfilerBusyError
from checkmate.model.graph import DFGraph
from checkmate.plugins import COST_MODELS, CostModel, annotated, checked_cost_model
from checkmate.problem.problem import OnProgress, Progress

__all__ = ["Prices", "by_bytes", "known_cost_model", "measured_ops", "price"]


_Op = TypeVar("_Op")
_ROOFLINE = "roofline"
_OWN = ("profiled", "flops", _ROOFLINE)
"""Names of the cost models that are no plugins."""
_BYTES_PER_SECOND = 1e10
"""Assumed bytes/s of memory for ops that can't be run on made-up inputs."""
_SAVED_EVERY = 32
"""Ops measured between two writes to disk: a killed process loses at most this number."""
_BUSY = (
    "a new plan times its ops, which is impossible inside a profiler or memory meter: run one step of the "
    "compiled model before measuring it"
)
_memory: dict[str, dict[str, OpProfile]] = {}  # machine → layout → profile
_log = logging.getLogger(__name__)


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


def known_cost_model(cost_model: object) -> str | CostModel:
    """A cost model, or the name of one that exists.

    Raises:
        CostError: if it names a device that is in no table.
        PluginError: if there is no cost model of this name.
        TypeError: if this is neither a name nor has a method ``annotate``.
    """
    model = checked_cost_model(cost_model)
    if not isinstance(model, str) or model in _OWN:
        return model
    if model.startswith(f"{_ROOFLINE}-"):
        Roofline.nearest(model.removeprefix(f"{_ROOFLINE}-"), "fp32")
        return model
    try:
        COST_MODELS.spec(model)
    except PluginError as error:
        raise PluginError(f"{error}; besides those, there are {[*_OWN]}") from None
    return model


def price(graph: DFGraph, prices: Prices, cost_model: str | CostModel, *, workspaces: bool) -> DFGraph:
    """The graph with the costs of a cost model; ``workspaces`` = measure them whatever the cost model is.

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
    if isinstance(cost_model, str) and (cost_model == _ROOFLINE or cost_model.startswith(f"{_ROOFLINE}-")):
        return _in_seconds(counted, prices, cost_model.removeprefix(_ROOFLINE).removeprefix("-"))
    return annotated(cost_model, counted)


def _in_seconds(counted: DFGraph, prices: Prices, device: str) -> DFGraph:
    """A graph in FLOPs, priced by the roofline of a device; ``""`` = the one that it runs on."""
    here = prices.gpu() if not device else None
    if not device and here is None:
        return in_formats(counted, prices.formats(), lambda _format: prices.cpu())
    name = device_in_table(*here) if here is not None else device
    return in_formats(counted, prices.formats(), partial(Roofline.nearest, name))


def by_bytes(size: int) -> OpProfile:
    """The profile of an op that can't be measured: the seconds of moving ``size`` bytes, no workspace."""
    return OpProfile(seconds=size / _BYTES_PER_SECOND, workspace=0)


def measured_ops(
    machine: dict[str, str],
    distinct: Mapping[str, _Op],
    profile: Callable[[Iterable[_Op]], Iterable[OpProfile]],
    *,
    name: Callable[[_Op], str],
    on_disk: bool,
    on_progress: OnProgress | None = None,
) -> Mapping[str, OpProfile]:
    """The profile of each distinct op; those that are known are not measured again.

    Args:
        machine: what decides how long an op takes, besides the op; see :class:`checkmate.cost.MeasuredOps`.
        distinct: layout → an op of that layout.
        profile: measures a few ops, in order; it takes each one from the iterable when it is about to run it.
        name: gives the name of an op, for progress reports.
        on_disk: whether profiles are read from disk and kept there.
        on_progress: called before each op that is measured.

    Returns:
        Layout → profile, at least for every layout of ``distinct``.

    Raises:
        ProfilerBusyError: inside a profiler or a memory meter.
    """
    known = _memory.setdefault(repr(machine), {})
    table = MeasuredOps(machine) if on_disk else None
    missing = {layout: op for layout, op in distinct.items() if layout not in known}
    kept = table.known() if table is not None and missing else {}
    known |= {layout: kept[layout] for layout in missing.keys() & kept.keys()}
    new = _to_measure(missing, kept)
    started = time.monotonic()

    def announce(k: int, op: _Op) -> _Op:
        step = f"timing op {k + 1} of {len(new)}: {name(op)}"
        _log.debug("%s", step)
        if on_progress is not None:
            on_progress(Progress(None, 0.0, time.monotonic() - started, step))
        return op

    numbered = iter(enumerate(new.items()))
    while part := list(islice(numbered, _SAVED_EVERY)):
        fresh: dict[str, OpProfile] = {}
        ops = (announce(k, op) for k, (_, op) in part)
        try:
            for (_, (layout, _)), found in zip(part, profile(ops), strict=True):
                fresh[layout] = found.after(kept.get(layout))
        except ProfilerBusyError as error:
            if new.keys() - fresh.keys() - known.keys():
                raise ProfilerBusyError(_BUSY) from error
            break  # keep the earlier measurements; the next process measures again
        finally:
            known |= fresh
            if table is not None and fresh:
                table.add(fresh)
    if new:
        again, seconds = len(_to_measure(new, known)), time.monotonic() - started
        _log.info("timed %d distinct ops (%d to be timed again) in %.1f s", len(new), again, seconds)
    return known


def _to_measure(ops: Mapping[str, _Op], kept: Mapping[str, OpProfile]) -> dict[str, _Op]:
    """The ops without a profile in ``kept``, and those whose profile should be measured again."""
    return {layout: op for layout, op in ops.items() if layout not in kept or kept[layout].to_repeat}

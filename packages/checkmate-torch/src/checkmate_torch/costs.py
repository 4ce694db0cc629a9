"""What each op costs: a cost model prices the ops of a traced graph, one function for all of them.

    "profiled"   seconds: each distinct (function, shapes, strides, dtypes) is run on this device
    "flops"      floating-point operations, from shapes alone
    "roofline"   seconds, from FLOPs, bytes and the peaks of this device; or "roofline-A100-80GB"
    any other    an installed cost model, or an object with ``annotate``: it is given the graph in FLOPs

Costs decide what is recomputed; workspaces decide what fits. The latter can only be measured: by "profiled"
at the same time, with other models if it is asked for.

The graph holds fake tensors; to be measured, an op is run on real ones of the same layout, one op at a time.
Floats are random numbers, repeated; integers and booleans zero, so that indices stay in range.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves, tree_map

from checkmate import DFGraph, Progress
from checkmate.cost import MeasuredOps, OpProfile, with_costs
from checkmate.errors import ProfilerBusyError
from checkmate.plugins import CostModel, annotated, checked_cost_model
from checkmate.problem import OnProgress
from checkmate_torch.flops import flops_of
from checkmate_torch.profile import machine_of, profile_op
from checkmate_torch.roofline import roofline
from checkmate_torch.safety import may_run_twice, takes_library_state
from checkmate_torch.symbols import largest

__all__ = ["price", "profile_node"]

_log = logging.getLogger(__name__)
_cache: dict[str, dict[str, OpProfile]] = {}  # machine → layout → what was measured
_BYTES_PER_SECOND = 1e10
"""Stands in for the memory bandwidth where an op can't be run on made-up inputs."""
_PATTERN = 2**16
"""So many random numbers are drawn for a tensor, and repeated."""
_SAVED_EVERY_S = 5.0
"""Measured ops are written that often, so that an interrupt loses little."""


def price(
    graph: DFGraph,
    nodes: Sequence[Node | None],
    cost_model: str | CostModel = "profiled",
    *,
    workspaces: bool = True,
    on_disk: bool = True,
    on_progress: OnProgress | None = None,
) -> DFGraph:
    """The graph with the costs of a model, and with the workspaces of its ops.

    Args:
        graph: whose costs mean nothing yet; workspaces that it has already are added to.
        nodes: the FX node of each op, with fake tensors in ``meta["val"]``; None costs nothing.
        cost_model: a name, see the module, or a cost model.
        workspaces: whether to measure them, which runs each distinct op; ``"profiled"`` always does.
        on_disk: whether what was measured is read from disk and kept there.
        on_progress: called before each distinct op that is measured.

    Raises:
        CostError: if the model can't price this graph, e.g. for a device that is in no table.
        PluginError: if there is no cost model of this name.
        ProfilerBusyError: inside of a profiler or a memory meter.
    """
    cost_model = checked_cost_model(cost_model)
    if cost_model == "profiled" or workspaces:
        layouts = [_layout_of(node) if node is not None else None for node in nodes]
        distinct = {key: node for key, node in zip(layouts, nodes, strict=True) if key and node is not None}
        _measure_all(distinct, on_disk=on_disk, on_progress=on_progress)
        profiles = [_cache[key[0]][key[1]] if key else OpProfile(0.0, 0) for key in layouts]
        ops = tuple(
            replace(op, cost=measured.seconds, workspace=op.workspace + measured.workspace)
            for op, measured in zip(graph.ops, profiles, strict=True)
        )
        graph = replace(graph, ops=ops, cost_unit="s")
        if cost_model == "profiled":
            return graph
    counted = with_costs(graph, (flops_of(node) if node is not None else 0.0 for node in nodes), "flop")
    if cost_model == "flops":
        return counted
    if isinstance(cost_model, str) and (cost_model == "roofline" or cost_model.startswith("roofline-")):
        device = cost_model.removeprefix("roofline").removeprefix("-")
        return roofline(counted, nodes, device, on_disk=on_disk)
    return annotated(cost_model, counted)


def profile_node(node: Node) -> OpProfile:
    """Seconds and workspace bytes of a node's function, on the device of its tensors; remembered.

    An op that may run only once, or that can't run on made-up inputs, is charged by the bytes that it
    touches, with no workspace.

    Raises:
        ProfilerBusyError: inside of a profiler or a memory meter.
    """
    machine, layout = _layout_of(node)
    known = _cache.setdefault(machine, {})
    if layout not in known:
        known[layout] = _measure(node)
    return known[layout]


def _measure_all(
    distinct: dict[tuple[str, str], Node], *, on_disk: bool, on_progress: OnProgress | None
) -> None:
    """Measure what is neither in memory nor on disk; say which, and keep it."""
    tables: dict[str, MeasuredOps] = {}
    for (machine, _), node in distinct.items():
        if on_disk and machine not in tables:
            tables[machine] = MeasuredOps(machine_of(_device_of(node)))
            _cache[machine] = tables[machine].known() | _cache.get(machine, {})
    new = {key: node for key, node in distinct.items() if key[1] not in _cache.setdefault(key[0], {})}
    started = saved = time.monotonic()
    fresh: dict[str, dict[str, OpProfile]] = {}
    try:
        for k, ((machine, layout), node) in enumerate(new.items()):
            step = f"timing op {k + 1} of {len(new)}: {node.target}"
            _log.debug("%s", step)
            if on_progress is not None:
                on_progress(Progress(None, 0.0, time.monotonic() - started, step))
            fresh.setdefault(machine, {})[layout] = profile_node(node)
            if time.monotonic() - saved > _SAVED_EVERY_S:
                _keep(tables, fresh)
                saved = time.monotonic()
    finally:
        _keep(tables, fresh)
    if new:
        _log.info("timed %d distinct ops in %.1f s", len(new), time.monotonic() - started)


def _keep(tables: dict[str, MeasuredOps], fresh: dict[str, dict[str, OpProfile]]) -> None:
    for machine, ops in fresh.items():
        if machine in tables and ops:
            tables[machine].add(ops)
    fresh.clear()


def _measure(node: Node) -> OpProfile:
    args = _shown(node)
    tensors = [v for v in tree_leaves((args, node.meta.get("val"))) if isinstance(v, torch.Tensor)]
    if not may_run_twice(node) or takes_library_state(node):
        return _by_bytes(tensors)
    try:
        with torch._subclasses.fake_tensor.unset_fake_temporarily():
            real_args, real_kwargs = tree_map(_real, args)
            return profile_op(partial(_as_function(node), *real_args, **real_kwargs), _device_of(node))
    except ProfilerBusyError as error:
        raise ProfilerBusyError(
            "a new plan times its ops, which can't be done inside of a profiler or memory meter: "
            "run one step of the compiled model before measuring it"
        ) from error
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        _log.info("%s can't be profiled, charging its bytes: %s", node.target, error)
        return _by_bytes(tensors)


def _shown(node: Node) -> object:
    """The arguments of a node, with fake tensors in the place of nodes."""
    return map_arg((node.args, dict(node.kwargs)), lambda n: n.meta.get("val"))


def _device_of(node: Node) -> torch.device:
    """Where a node runs: on the accelerator, if any of its tensors is there."""
    shown = tree_leaves((_shown(node), node.meta.get("val")))
    devices = [v.device for v in shown if isinstance(v, torch.Tensor)]
    return next((d for d in devices if d.type != "cpu"), torch.device("cpu"))


def _layout_of(node: Node) -> tuple[str, str]:
    """What decides the cost of a node: the machine, and the function with the layout of its arguments."""
    return repr(machine_of(_device_of(node))), repr((str(node.target), tree_map(_layout, _shown(node))))


def _by_bytes(tensors: Sequence[torch.Tensor]) -> OpProfile:
    size = sum(largest(v.untyped_storage().nbytes()) for v in tensors)
    return OpProfile(seconds=size / _BYTES_PER_SECOND, workspace=0)


def _as_function(node: Node) -> Callable[..., object]:
    if not callable(node.target):
        raise TypeError(f"{node.target!r} is no function")
    return node.target


def _layout(value: object) -> object:
    """What of an argument decides the cost."""
    if isinstance(value, torch.Tensor):
        shape, stride = tuple(map(largest, value.shape)), tuple(map(largest, value.stride()))
        return (shape, stride, value.dtype, value.device.type)
    return largest(value) if isinstance(value, torch.SymInt) else value


def _real(value: object) -> object:
    """A real tensor in the layout of a fake one; anything else as it is."""
    if isinstance(value, torch.SymInt):
        return largest(value)
    if not isinstance(value, torch.Tensor):
        return value
    shape, stride = tuple(map(largest, value.shape)), tuple(map(largest, value.stride()))
    extent = 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True)) if all(shape) else 0
    flat = torch.empty(extent, dtype=value.dtype, device=value.device)
    if value.dtype.is_floating_point:
        pattern = flat[:_PATTERN].normal_()  # to draw every number takes longer than most ops
        for piece in flat[_PATTERN:].split(_PATTERN):  # type: ignore[no-untyped-call]
            piece.copy_(pattern[: len(piece)])
    else:
        flat.zero_()
    return flat.as_strided(shape, stride)

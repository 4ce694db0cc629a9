"""The cost of each op of a traced graph, by the cost models of :mod:`checkmate.framework.pricing`.

The graph holds fake tensors; to be measured, an op is run on real ones of the same layout, one op at a time.
Floats are random numbers, repeated, or a single 0.5; integers and booleans are zero, so that indices stay in
range.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, TypeVar, cast

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from checkmate import DFGraph, OnProgress, ProfilerBusyError, framework
from checkmate.cost import MeasuredOps, OpProfile, Roofline, measured_roofline
from checkmate.framework import Prices, by_bytes, measured_ops
from checkmate.plugins import CostModel
from checkmate_torch.costs.flops import flops_of, number_format
from checkmate_torch.costs.profile import profile_op
from checkmate_torch.costs.workspaces import guessed_workspace
from checkmate_torch.ops.device import machine_of
from checkmate_torch.ops.fast_functions import fastest
from checkmate_torch.ops.recompute_rules import is_random, may_run_twice, takes_library_state
from checkmate_torch.ops.sizes import largest, typical
from checkmate_torch.ops.storages import storage_key, stretch_of, tensors_in
from checkmate_torch.private import tree_map, unfaked

__all__ = ["call_key", "measured_by_device", "price", "profile_node", "real_like", "workspaces_of"]

_Task = TypeVar("_Task")
_log = logging.getLogger(__name__)
_FREE = OpProfile(seconds=0.0, workspace=0)
_CPU = torch.device("cpu")
_PATTERN = 2**16
"""Number of random values that are drawn for a tensor, and repeated."""

_READ_ON_CPU: Mapping[object, tuple[int, int]] = {
    torch.ops.aten._scaled_dot_product_efficient_attention_backward.default: (7, 8),
    torch.ops.aten._efficient_attention_backward.default: (12, 13),
}
"""Op → argument positions of its dropout's seed and offset. The GPU kernel reads both on the CPU, where the
forward op leaves them. Fake tensors show them on the GPU, and reading them there ends the process."""


def price(
    graph: DFGraph,
    nodes: Sequence[Node | None],
    cost_model: str | CostModel = "profiled",
    *,
    workspaces: bool = True,
    on_disk: bool = True,
    on_progress: OnProgress | None = None,
) -> DFGraph:
    """Add the costs of a cost model, and the workspaces of ops, to a graph.

    Args:
        graph: a graph without costs; measured workspaces are added to those that it has.
        nodes: the FX node of each op, with fake tensors in ``meta["val"]``; None costs nothing.
        cost_model: a name, or a cost model.
        workspaces: whether to run each distinct op to measure its workspace; ``"profiled"`` always does. If
            not, workspaces of CUDA's libraries are guessed (:mod:`checkmate_torch.costs.workspaces`).
        on_disk: whether measured costs are read from disk and kept there.
        on_progress: called before each distinct op that is measured.

    Raises:
        CostError: if the model can't price this graph, e.g. for a device that is in no table.
        PluginError: if there is no cost model of this name.
        ProfilerBusyError: inside a profiler or a memory meter.
    """
    prices = Prices(
        measured=lambda graph: _with_profiles(graph, nodes, on_disk, on_progress),
        flops=lambda: [flops_of(node) if node is not None else 0.0 for node in nodes],
        formats=lambda: [number_format(node) if node is not None else None for node in nodes],
        gpu=lambda: _gpu_of(nodes),
        cpu=lambda: _of_this_cpu(on_disk),
    )
    priced = framework.price(graph, prices, cost_model, workspaces=workspaces)
    return priced if workspaces or cost_model == "profiled" else _with_guesses(priced, nodes)


def workspaces_of(graph: DFGraph, nodes: Sequence[Node | None]) -> Mapping[Hashable, int]:
    """Workspaces of a priced graph: key of a call → bytes that the call needs beyond its outputs, if any.

    Random ops are left out: their workspaces are random states for replays.
    """
    pairs = zip(graph.ops, nodes, strict=True)
    needy = [(op, n) for op, n in pairs if op.workspace and n is not None and not is_random(n)]
    return {call_key(n.target, *_shown(n)): op.workspace for op, n in needy}


def call_key(function: object, args: object, kwargs: object) -> Hashable:
    """Function, shapes and dtypes of operands; strides and arguments that are no tensors don't count."""
    return function, *((tuple(map(largest, x.shape)), x.dtype) for x in tensors_in((args, kwargs)))


def profile_node(node: Node) -> OpProfile:
    """Seconds and workspace bytes of a node's function, on the device of its tensors.

    An op that may run only once, or that can't run on made-up inputs, is charged by the bytes that it
    touches, with no workspace.
    """
    args = _shown(node)
    touched = tensors_in((args, node.meta.get("val")))
    charged = by_bytes(sum(largest(v.untyped_storage().nbytes()) for v in touched))
    if not may_run_twice(node) or takes_library_state(node):
        return charged
    try:
        with unfaked(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are of the made-up inputs
            real_args, real_kwargs = real_like(args)
            for k in _READ_ON_CPU.get(node.target, ()):
                real_args = (*real_args[:k], real_args[k].cpu(), *real_args[k + 1 :])
            return profile_op(partial(_as_function(node), *real_args, **real_kwargs), _device_of(node))
    except ProfilerBusyError:
        raise
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        _log.info("%s can't be profiled, charging its bytes: %s", node.target, error)
        return charged


def measured_by_device(
    tasks: Mapping[str, _Task],
    device_of: Callable[[_Task], torch.device],
    profile: Callable[[_Task], OpProfile],
    *,
    name: Callable[[_Task], str],
    on_disk: bool,
    on_progress: OnProgress | None,
) -> dict[str, OpProfile]:
    """Profiles by key, at least one for each task; each device has its own table of known profiles."""
    profiles: dict[str, OpProfile] = {}
    for device in dict.fromkeys(map(device_of, tasks.values())):
        profiles |= measured_ops(
            machine_of(device),
            {key: task for key, task in tasks.items() if device_of(task) == device},
            partial(map, profile),
            name=name,
            on_disk=on_disk,
            on_progress=on_progress,
        )
    return profiles


def _with_profiles(
    graph: DFGraph, nodes: Sequence[Node | None], on_disk: bool, on_progress: OnProgress | None
) -> DFGraph:
    layouts = ["" if node is None else _layout_of(node) for node in nodes]
    profiles = measured_by_device(
        {layout: node for layout, node in zip(layouts, nodes, strict=True) if node is not None},
        _device_of,
        profile_node,
        name=lambda node: str(node.target),
        on_disk=on_disk,
        on_progress=on_progress,
    )
    ops = tuple(
        replace(op, cost=profile.seconds, workspace=op.workspace + profile.workspace)
        for op, profile in zip(graph.ops, (profiles.get(each, _FREE) for each in layouts), strict=True)
    )
    return replace(graph, ops=ops, cost_unit="s")


def _with_guesses(graph: DFGraph, nodes: Sequence[Node | None]) -> DFGraph:
    guesses = (0 if node is None else guessed_workspace(node) for node in nodes)
    pairs = zip(graph.ops, guesses, strict=True)
    return replace(graph, ops=tuple(replace(op, workspace=op.workspace + guess) for op, guess in pairs))


def _gpu_of(nodes: Sequence[Node | None]) -> tuple[str, float] | None:
    """Name and gigabytes of the GPU that holds a graph's tensors, if one does."""
    devices = (_device_of(node) for node in nodes if node is not None)
    cuda = next((device for device in devices if device.type == "cuda"), None)
    if cuda is None:
        return None
    return torch.cuda.get_device_name(cuda), torch.cuda.get_device_properties(cuda).total_memory / 1e9


@cache
def _of_this_cpu(on_disk: bool) -> Roofline:
    with unfaked(), torch.no_grad():
        return measured_roofline(MeasuredOps(machine_of(_CPU)), "copy", _cpu_runs, on_disk=on_disk)


def _cpu_runs(side: int, numbers: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """A product of square matrices, and a copy of float32 numbers."""
    a, b = torch.ones(side, side), torch.ones(side, side)
    source, target = torch.zeros(numbers), torch.zeros(numbers)
    return lambda: torch.mm(a, b), lambda: target.copy_(source)


def _shown(node: Node) -> tuple[object, object]:
    """The arguments of a node, with fake tensors in the place of nodes."""
    args, kwargs = map_arg((node.args, dict(node.kwargs)), lambda n: n.meta.get("val"))
    return args, kwargs


def _device_of(node: Node) -> torch.device:
    """Where a node runs: on the accelerator, if any of its tensors is there."""
    devices = [v.device for v in tensors_in((_shown(node), node.meta.get("val")))]
    return next((d for d in devices if d.type != "cpu"), torch.device("cpu"))


def _layout_of(node: Node) -> str:
    """The function of a node and the layout of its arguments, which decide its cost on one machine."""
    shown = _shown(node)
    tensors, stretches = tensors_in(shown), _stretches(shown)
    rows = list(map(_row_of, tensors))
    shared = [row for row in stretches if rows.count(row) > 1]
    places = [
        (shared.index(row), stretch_of(x).start - stretches[row].start)
        for x, row in zip(tensors, rows, strict=True)
        if row in shared
    ]
    return repr((str(node.target), tree_map(_layout, shown), *places))


def _as_function(node: Node) -> Callable[..., object]:
    target = node.target if is_random(node) else fastest(node.target)  # replays call the op itself
    return cast("Callable[..., object]", target)


def _layout(value: object) -> object:
    """The part of an argument that decides the cost."""
    if isinstance(value, torch.Tensor):
        shape, stride = tuple(map(largest, value.shape)), tuple(map(largest, value.stride()))
        kind = "all true" if value.dtype == torch.bool else value.dtype
        return (shape, stride, kind, value.device.type)
    return typical(value)


def _row_of(x: torch.Tensor) -> tuple[int, torch.dtype]:
    """A key for the storage of a tensor, seen as a row of numbers of the tensor's dtype."""
    return storage_key(x), x.dtype


def _stretches(args: object) -> dict[tuple[int, torch.dtype], range]:
    """Row → the part of it, as a range, that covers all its tensors among ``args``."""
    found: dict[tuple[int, torch.dtype], list[range]] = {}
    for x in tensors_in(args):
        found.setdefault(_row_of(x), []).append(stretch_of(x))
    return {
        row: range(min(one.start for one in own), max(one.stop for one in own)) for row, own in found.items()
    }


def real_like(args: object) -> Any:
    """Real tensors in the layout of fake ones, and a typical number for each symbol; other values unchanged.

    Tensors that share a storage share one again: cuDNN needs that for the weights of a recurrent network.
    """
    stretches, like = _stretches(args), {_row_of(x): x for x in tensors_in(args)}
    rows = {row: _numbers(len(stretch), like[row]) for row, stretch in stretches.items()}

    def real(value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return typical(value)
        row, start = _row_of(value), stretch_of(value).start
        shape, stride = tuple(map(largest, value.shape)), tuple(map(largest, value.stride()))
        return rows[row].as_strided(shape, stride, start - stretches[row].start)

    return tree_map(real, args)


def _numbers(n: int, like: torch.Tensor) -> torch.Tensor:
    """A row of n made-up numbers."""
    flat = torch.empty(n, dtype=like.dtype, device=like.device)
    if n == 1 and like.dtype.is_floating_point:
        flat.fill_(0.5)  # it may be a probability
    elif like.dtype.is_floating_point:
        pattern = flat[:_PATTERN].normal_()  # drawing every number takes longer than most ops
        for piece in flat[_PATTERN:].split(_PATTERN):  # type: ignore[no-untyped-call]
            piece.copy_(pattern[: len(piece)])
    else:
        flat.fill_(like.dtype == torch.bool)  # a mask that selects everything takes most
    return flat

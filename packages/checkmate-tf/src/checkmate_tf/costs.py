"""What each op costs: a cost model prices the ops of a traced graph, one function for all of them.

    "profiled"   seconds: each distinct (op, attributes, shapes, dtypes) is run on this device
    "flops"      floating-point operations, from shapes alone
    "roofline"   seconds, from FLOPs, bytes and the peaks of this device; or "roofline-A100-80GB"
    any other    an installed cost model, or an object with ``annotate``: it is given the graph in FLOPs

Costs decide what is recomputed; workspaces decide what fits. The latter can only be measured: by "profiled"
at the same time, with other models if it is asked for.

An op that can't run alone, because it has state, resources or functions of its own, is charged by the bytes
that it touches.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import tensorflow as tf

from checkmate import DFGraph, Progress
from checkmate.cost import MeasuredOps, OpProfile, with_costs
from checkmate.errors import ProfilerBusyError
from checkmate.plugins import CostModel, annotated, checked_cost_model
from checkmate.problem import OnProgress
from checkmate_tf.device import device_of_this_machine, machine_of
from checkmate_tf.flops import flops_of
from checkmate_tf.private import is_stateful
from checkmate_tf.profile import NotMeasurableError, constant_inputs, profile_in_turn
from checkmate_tf.roofline import roofline
from checkmate_tf.storages import calls_functions, lender

__all__ = ["price", "profile_ops"]

_log = logging.getLogger(__name__)
_cache: dict[str, dict[str, OpProfile]] = {}  # machine → signature → what was measured
_FREE = OpProfile(seconds=0.0, workspace=0)
_SOURCES = frozenset({"Const", "NoOp", "Placeholder", "ReadVariableOp", "VarHandleOp"})
"""Ops that only name what is there."""
_OPAQUE = (tf.resource, tf.variant, tf.string)
_BYTES_PER_SECOND = 1e10
"""Stands in for the memory bandwidth where an op can't be run on made-up inputs."""
_SAVED_EVERY = 32
"""Measured ops are written that often, so that an interrupt loses little."""


def price(
    graph: DFGraph,
    groups: Sequence[Sequence[tf.Operation]],
    cost_model: str | CostModel = "profiled",
    *,
    workspaces: bool = True,
    on_disk: bool = True,
    on_progress: OnProgress | None = None,
) -> DFGraph:
    """The graph with the costs of a model, and with the workspaces of its ops.

    Args:
        graph: whose costs mean nothing yet; workspaces that it has already are added to.
        groups: the TensorFlow ops, of a function's graph and with static shapes, that each op stands for.
        cost_model: a name, see the module, or a cost model.
        workspaces: whether to add to each op's workspace the largest of its group, which runs each distinct
            op. Without it, workspaces stay as they are.
        on_disk: whether what was measured is read from disk and kept there.
        on_progress: called before each distinct op that is measured.

    Raises:
        CostError: if the model can't price this graph, e.g. for a device that is in no table.
        PluginError: if there is no cost model of this name.
        ProfilerBusyError: inside of a profiler or a memory meter.
    """
    cost_model = checked_cost_model(cost_model)
    if cost_model == "profiled" or workspaces:
        ops = [op for group in groups for op in group]
        measured = profile_ops(ops, on_disk=on_disk, on_progress=on_progress)
        graph = _with_profiles(graph, [[measured[op] for op in group] for group in groups], workspaces)
        if cost_model == "profiled":
            return graph
    counted = with_costs(graph, (float(sum(map(flops_of, group))) for group in groups), "flop")
    if cost_model == "flops":
        return counted
    if isinstance(cost_model, str) and (cost_model == "roofline" or cost_model.startswith("roofline-")):
        return roofline(
            counted, groups, cost_model.removeprefix("roofline").removeprefix("-"), on_disk=on_disk
        )
    return annotated(cost_model, counted)


def profile_ops(
    ops: Sequence[tf.Operation], *, on_disk: bool = True, on_progress: OnProgress | None = None
) -> dict[tf.Operation, OpProfile]:
    """Seconds and workspace bytes of each op, on this machine's device; remembered.

    An op that can't run alone is charged by the bytes that it touches, with no workspace; sources, such as
    constants and reads of variables, cost nothing.

    Args:
        ops: of a function's graph.
        on_disk: whether what was measured is read from disk and kept there.
        on_progress: called before each distinct op that is measured.

    Raises:
        ProfilerBusyError: inside of a profiler or a memory meter.

    >>> graph = tf.function(lambda x: tf.nn.softmax(x)).get_concrete_function(tf.TensorSpec([4, 8])).graph
    >>> [profile.workspace for profile in profile_ops(graph.get_operations(), on_disk=False).values()]
    [0, 0, 0]
    """
    signatures = {op: _signature(op) for op in ops if _can_run_alone(op)}
    machine = machine_of(device_of_this_machine())
    known = _cache.setdefault(repr(machine), {})
    table = MeasuredOps(machine) if on_disk else None
    if table is not None and not known.keys() >= set(signatures.values()):
        known |= table.known() | known
    new = {signature: op for op, signature in signatures.items() if signature not in known}
    _measure(new, known, table, on_progress)
    return {op: known[signatures[op]] if op in signatures else _by_bytes(op) for op in ops}


def _measure(
    new: Mapping[str, tf.Operation],
    known: dict[str, OpProfile],
    table: MeasuredOps | None,
    on_progress: OnProgress | None,
) -> None:
    """Measure distinct ops; say which, and keep it."""
    started = time.monotonic()

    def announced(part: Sequence[tuple[int, tf.Operation]]) -> Iterator[tf.Operation]:
        for k, op in part:
            step = f"timing op {k + 1} of {len(new)}: {op.type}"
            _log.debug("%s", step)
            if on_progress is not None:
                on_progress(Progress(None, 0.0, time.monotonic() - started, step))
            yield op

    signatures = list(new)
    for _, part in groupby(enumerate(new.values()), key=lambda pair: pair[0] // _SAVED_EVERY):
        numbered = list(part)
        try:
            found = profile_in_turn(announced(numbered), device_of_this_machine())
        except ProfilerBusyError as error:
            raise ProfilerBusyError(
                "a new plan times its ops, which can't be done inside of a profiler or memory meter: "
                "run one step of the compiled model before measuring it"
            ) from error
        fresh: dict[str, OpProfile] = {}
        for (k, op), profile in zip(numbered, found, strict=True):
            if isinstance(profile, NotMeasurableError):
                _log.info("%s can't be profiled, charging its bytes: %s", op.name, profile)
            fresh[signatures[k]] = profile if isinstance(profile, OpProfile) else _by_bytes(op)
        known |= fresh
        if table is not None:
            table.add(fresh)
    if new:
        _log.info("timed %d distinct ops in %.1f s", len(new), time.monotonic() - started)


def _with_profiles(graph: DFGraph, groups: Sequence[Sequence[OpProfile]], workspaces: bool) -> DFGraph:
    ops = []
    for op, profiles in zip(graph.ops, groups, strict=True):
        further = max((p.workspace for p in profiles), default=0) if workspaces else 0
        seconds = sum(p.seconds for p in profiles)
        ops.append(replace(op, cost=float(seconds), workspace=op.workspace + further))
    return replace(graph, ops=tuple(ops), cost_unit="s")


def _can_run_alone(op: tf.Operation) -> bool:
    if not op.outputs or op.type in _SOURCES or calls_functions(op) or is_stateful(op):
        return False
    return not any(t.dtype in _OPAQUE for t in (*op.inputs, *op.outputs))


def _signature(op: tf.Operation) -> str:
    """What decides the cost of an op, beside the machine."""
    known = constant_inputs(op)
    inputs = [
        f"{t.dtype.name}{known[k].tolist() if k in known else tuple(t.shape)}"
        for k, t in enumerate(op.inputs)
    ]
    attrs = [f"{attr.name}={op.get_attr(attr.name)!r}" for attr in op.op_def.attr]
    after = [f"after={before.type}"] if (before := lender(op)) is not None else []
    return f"{op.type}({', '.join([*inputs, *attrs, *after])})"


def _by_bytes(op: tf.Operation) -> OpProfile:
    if op.type in _SOURCES:
        return _FREE
    tensors = [t for t in (*op.inputs, *op.outputs) if t.dtype not in _OPAQUE]
    size = sum((t.shape.num_elements() or 0) * t.dtype.size for t in tensors)
    return OpProfile(seconds=size / _BYTES_PER_SECOND, workspace=0)

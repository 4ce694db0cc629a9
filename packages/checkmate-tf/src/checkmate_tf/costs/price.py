"""Price each op of a traced graph, by the cost models of :mod:`checkmate.framework`.

An op that can't run alone, because it has state, resources or functions, is charged by the bytes that it
touches.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import tee

import tensorflow as tf

from checkmate import DFGraph, OnProgress, framework
from checkmate.cost import MeasuredOps, OpProfile, Roofline, measured_roofline, with_costs
from checkmate.framework import Prices, by_bytes, measured_ops
from checkmate.plugins import CostModel
from checkmate_tf.costs.flops import flops_of, number_format
from checkmate_tf.costs.profile import NoRoomError, NotMeasurableError, constant_inputs, profile_in_turn
from checkmate_tf.ops.device import device_of_this_machine, machine_of, memory_limit
from checkmate_tf.ops.storages import calls_functions, is_compiled, lender, nbytes
from checkmate_tf.private import called_code, is_stateful

__all__ = ["price", "profile_ops"]

_log = logging.getLogger(__name__)
_FREE = OpProfile(seconds=0.0, workspace=0)
_SOURCES = frozenset({"Const", "NoOp", "Placeholder", "ReadVariableOp", "VarHandleOp"})
"""Types of ops that only name an existing value."""
_OPAQUE = (tf.resource, tf.variant, tf.string)


def price(
    graph: DFGraph,
    groups: Sequence[Sequence[tf.Operation]],
    cost_model: str | CostModel = "profiled",
    *,
    profiles: Mapping[tf.Operation, OpProfile] | None = None,
    loops: Mapping[tf.Operation, Mapping[tf.Operation, int]] | None = None,
    on_disk: bool = True,
) -> DFGraph:
    """The graph with the costs of a cost model; workspaces stay as they are.

    Args:
        graph: without costs.
        groups: the TensorFlow ops behind each op, with static shapes.
        cost_model: a name, or a cost model.
        profiles: op → its profile, for all ops; the cost model ``"profiled"`` needs them.
        loops: loop → the ops that it runs, and how often.
        on_disk: whether the measured roofline of this CPU is kept on disk.

    Raises:
        CostError: if the model can't price this graph, e.g. for a device that is in no table.
        PluginError: if there is no cost model of this name.
    """
    work = [_work(group, loops or {}) for group in groups]
    known = profiles or {}

    def measured(graph: DFGraph) -> DFGraph:
        return with_costs(graph, [sum(n * known[op].seconds for op, n in ops.items()) for ops in work], "s")

    prices = Prices(
        measured=measured,
        flops=lambda: [float(sum(n * flops_of(op) for op, n in ops.items())) for ops in work],
        formats=lambda: [number_format(max(ops, key=flops_of)) if ops else None for ops in work],
        gpu=_gpu,
        cpu=lambda: _of_this_cpu(on_disk),
    )
    return framework.price(graph, prices, cost_model, workspaces=False)


def profile_ops(
    ops: Sequence[tf.Operation], *, on_disk: bool = True, on_progress: OnProgress | None = None
) -> dict[tf.Operation, OpProfile]:
    """Seconds and workspace bytes of each op, on this machine's device; measured once.

    An op that can't run alone is charged by the bytes that it touches, with no workspace; sources, such as
    constants and reads of variables, cost nothing. ``on_progress`` is called before each distinct op that is
    measured.

    Raises:
        ProfilerBusyError: inside a profiler or a memory meter.

    >>> graph = tf.function(lambda x: tf.nn.softmax(x)).get_concrete_function(tf.TensorSpec([4, 8])).graph
    >>> [profile.workspace for profile in profile_ops(graph.get_operations(), on_disk=False).values()]
    [0, 0, 0]
    """
    signatures = {op: _signature(op) for op in ops if _can_run_alone(op)}
    device = device_of_this_machine()
    known = measured_ops(
        machine_of(device),
        {signature: op for op, signature in signatures.items()},
        partial(_profiled, device=device),
        name=lambda op: str(op.type),
        on_disk=on_disk,
        on_progress=on_progress,
    )
    return {op: known[signatures[op]] if op in signatures else _by_bytes(op) for op in ops}


def _profiled(ops: Iterable[tf.Operation], device: str) -> Iterator[OpProfile]:
    """The profile of each op; one that can't run on made-up inputs is charged by its bytes."""
    ops, again = tee(ops)
    for op, profile in zip(again, profile_in_turn(ops, device), strict=True):
        if isinstance(profile, NotMeasurableError):
            level = logging.WARNING if isinstance(profile, NoRoomError) else logging.INFO
            _log.log(level, "%s is charged for its bytes, without a workspace: %s", op.name, profile)
        yield profile if isinstance(profile, OpProfile) else _by_bytes(op)


def _work(
    group: Sequence[tf.Operation], loops: Mapping[tf.Operation, Mapping[tf.Operation, int]]
) -> Mapping[tf.Operation, int]:
    """The ops that a group runs, and how often; the ops inside replace a loop."""
    found: Counter[tf.Operation] = Counter()
    for op in group:
        found.update(loops.get(op, {op: 1}))
    return found


def _gpu() -> tuple[str, float] | None:
    """Name and gigabytes of this machine's GPU, if TensorFlow uses one."""
    here = device_of_this_machine()
    return None if here.startswith("CPU") else (machine_of(here)["device"], memory_limit(here) / 1e9)


@cache
def _of_this_cpu(on_disk: bool) -> Roofline:
    with tf.init_scope(), tf.device("CPU:0"):
        return measured_roofline(MeasuredOps(machine_of("CPU:0")), "negative", _cpu_runs, on_disk=on_disk)


def _cpu_runs(side: int, numbers: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """A product of square matrices, and a negation of float32 numbers."""
    square, source = tf.ones([side, side]), tf.zeros([numbers])
    return lambda: tf.linalg.matmul(square, square), lambda: tf.negative(source)


def _can_run_alone(op: tf.Operation) -> bool:
    if not op.outputs or op.type in _SOURCES:
        return False
    if not is_compiled(op) and (calls_functions(op) or is_stateful(op)):
        return False
    return not any(t.dtype in _OPAQUE for t in (*op.inputs, *op.outputs))


def _signature(op: tf.Operation) -> str:
    """The type, attributes and inputs of an op, which decide its cost on one machine."""
    known = constant_inputs(op)
    inputs = [
        f"{t.dtype.name}{known[k].tolist() if k in known else _shape(t)}" for k, t in enumerate(op.inputs)
    ]
    attrs = [f"{attr.name}={op.get_attr(attr.name)!r}" for attr in op.op_def.attr]
    if is_compiled(op):  # the names of its functions differ from process to process
        attrs = [called_code(op)]
    after = [f"after={before.type}"] if (before := lender(op)) is not None else []
    return f"{op.type}({', '.join([*inputs, *attrs, *after])})"


def _shape(tensor: tf.Tensor) -> object:
    return "?" if tensor.shape.rank is None else tuple(tensor.shape)


def _by_bytes(op: tf.Operation) -> OpProfile:
    if op.type in _SOURCES:
        return _FREE
    return by_bytes(sum(nbytes(t) for t in (*op.inputs, *op.outputs) if t.dtype not in _OPAQUE))

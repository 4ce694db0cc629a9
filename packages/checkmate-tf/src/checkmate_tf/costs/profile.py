"""Measure one op on one device: seconds of a run, and bytes that it needs beyond its outputs.

With L(t) the live bytes during a run, relative to its start and with its outputs alive at its end T,
``workspace = max L − min(L(T), bytes of the outputs)``: a buffer that a kernel keeps for a later op counts as
workspace.

The op runs alone, in a function that Grappler does not rewrite, as in a planned step; an op that uses the
workspace of another op runs right after it. The inputs outlive the run. So a kernel that would use a dying
input as workspace, such as the gradient of max pooling without oneDNN, needs less in a step than here.
"""

from __future__ import annotations

import time
import timeit
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf

from checkmate.cost import OpProfile
from checkmate_tf.costs.events import Execution, Trace, TraceRecorder
from checkmate_tf.ops.storages import is_compiled, lender, nbytes
from checkmate_tf.private import FuncGraph, copy_functions, emit_op, grappler_off, resource_specs, runnable

__all__ = ["NoRoomError", "NotMeasurableError", "constant_inputs", "profile_in_turn"]

_SPENT_S = 0.006
_LEAST_RUNS = 3
_LONG_S = 0.5
"""An op whose runs have taken this number of seconds is not run again."""
_MOST_RUNS = 10
_PATTERN = 2**16
"""The number of random numbers that are drawn; a tensor repeats them."""
_MOST_CONSTANTS = 64
_NAME = "measured"
_NOTHING = OpProfile(seconds=0.0, workspace=0)
"""The profile of an op that TensorFlow does not run: an alias, or one that only reads constants."""


class NotMeasurableError(ValueError):
    """An op can't run alone on made-up inputs; the message says why."""


class NoRoomError(NotMeasurableError):
    """The memory that is left is not enough to run an op alone."""


def profile_in_turn(
    ops: Iterable[tf.Operation], device: str = "CPU:0"
) -> list[OpProfile | NotMeasurableError]:
    """Run each op a few times and measure it, in one trace; an op that can't run alone gives its error.

    Floating-point inputs are repeated random numbers. Integers and booleans are zero, so that indices stay in
    range, except a few whose values the graph knows, such as shapes, axes and paddings. The first run of an
    op is the warm-up; the fastest of at least three others gives the time, or of fewer if they take longer
    than half a second. In all this takes 10 ms, or four runs of a longer op. On the CPU, time and bytes come
    from TensorFlow's trace, which excludes the overhead of the function call.

    Args:
        ops: with static shapes; without state, resources and functions. Each op is taken from the iterable
            after the previous one has run.
        device: ``"CPU:0"`` or ``"GPU:k"``.

    Raises:
        ProfilerBusyError: inside another profiler or memory meter.

    >>> graph = tf.function(lambda x: tf.nn.softmax(x)).get_concrete_function(tf.TensorSpec([4, 8])).graph
    >>> (softmax,) = profile_in_turn([op for op in graph.get_operations() if op.type == "Softmax"])
    >>> softmax.workspace
    0
    """
    gpu = device.startswith("GPU")
    found: list[OpProfile | NotMeasurableError] = []
    made: list[int] = []
    compiled: dict[int, Callable[[], object]] = {}
    recorder = nullcontext() if gpu else TraceRecorder()
    with recorder, tf.init_scope(), tf.device(device):
        for k, op in enumerate(ops):
            made.append(sum(map(nbytes, op.outputs)))
            run: Callable[[], object] | None = None  # frees the inputs of the op before
            try:
                run = _ready(op, f"{_NAME}_{k}")
                found.append(_run_on_gpu(run, device) if gpu else _NOTHING)
                if is_compiled(op):
                    compiled[k] = run
                elif not gpu:
                    _repeat(run)
            except NotMeasurableError as error:
                found.append(error)
            except tf.errors.ResourceExhaustedError:
                found.append(NoRoomError(f"{op.type} alone, on made-up inputs, runs out of memory"))
            except (tf.errors.OpError, ValueError, TypeError, NotImplementedError, KeyError) as error:
                found.append(NotMeasurableError(f"{op.type} can't run alone: {error}"))
    if isinstance(recorder, TraceRecorder):
        seen = _read(recorder.trace, device, made)
        seen |= {k: _run_compiled(run, device, made[k]) for k, run in compiled.items()}
        found = [seen.get(k, x) if isinstance(x, OpProfile) else x for k, x in enumerate(found)]
    return found


def constant_inputs(op: tf.Operation) -> dict[int, np.ndarray[Any, np.dtype[Any]]]:
    """Position of an input → its value, if it is a few integers that the graph knows, as a shape."""
    return {
        k: value
        for k, t in enumerate(op.inputs)
        if t.dtype.is_integer
        and t.shape.rank in (0, 1, 2)
        and (t.shape.num_elements() or 0) <= _MOST_CONSTANTS
        if (value := _static_value(t)) is not None
    }


def _static_value(tensor: tf.Tensor) -> Any:
    if tensor.op.type == "ShapeN":  # get_static_value knows Shape, not ShapeN
        shape = tensor.op.inputs[tensor.value_index].shape
        return np.array(shape) if shape.is_fully_defined() else None
    if tensor.op.type == "BroadcastGradientArgs":
        shapes = [_static_value(t) for t in tensor.op.inputs]
        known = all(shape is not None for shape in shapes)
        return (
            tf.raw_ops.BroadcastGradientArgs(s0=shapes[0], s1=shapes[1])[tensor.value_index].numpy()
            if known
            else None
        )
    return tf.get_static_value(tensor)


def _ready(op: tf.Operation, name: str) -> Callable[[], Sequence[tf.Tensor]]:
    """A function that runs an op on made-up inputs; it has run once."""
    if not op.outputs or any(not t.shape.is_fully_defined() for t in (*op.inputs, *op.outputs)):
        raise NotMeasurableError(f"{op.type} has no outputs, or unknown shapes")
    known = constant_inputs(op)
    left = [t for k, t in enumerate(op.inputs) if k not in known and t.dtype != tf.resource]
    function, arguments = _alone(op, known, left, name), [_real(t) for t in left]
    with grappler_off():
        outputs = function(*arguments)
    if any(t.shape != made.shape for t, made in zip(op.outputs, outputs, strict=True)):
        raise NotMeasurableError(f"the outputs of {op.type} have other shapes on made-up inputs")
    return lambda: function(*arguments)


def _alone(
    op: tf.Operation, known: Mapping[int, object], left: Sequence[tf.Tensor], name: str
) -> Callable[..., Sequence[tf.Tensor]]:
    """A function that runs one op; its arguments are the op's inputs that are not constant."""
    variables = {k: _variable(t) for k, t in enumerate(op.inputs) if t.dtype == tf.resource}
    graph = FuncGraph(name)
    with graph.as_default():
        if is_compiled(op):
            copy_functions(op.graph, graph)
        graph.inputs.extend(tf.compat.v1.placeholder(t.dtype, t.shape) for t in left)
        rest = iter(tuple(graph.inputs))
        inputs = {
            t.name: tf.constant(known[k], t.dtype) if k in known else next(rest)
            for k, t in enumerate(op.inputs)
            if k not in variables
        }
        inputs |= {op.inputs[k].name: variable.handle for k, variable in variables.items()}
        if (before := lender(op)) is not None:
            inputs |= zip((t.name for t in before.outputs), _emitted(before, inputs, "before"), strict=True)
        graph.outputs.extend(map(tf.identity, _emitted(op, inputs, name)))  # which keep the name of the op
    return runnable(graph)


def _emitted(op: tf.Operation, inputs: Mapping[str, tf.Tensor], name: str) -> Sequence[tf.Tensor]:
    """The outputs of a copy of an op in the graph that is being traced."""
    made = emit_op(
        tf.compat.v1.get_default_graph(),
        op.type,
        [inputs[t.name] for t in op.inputs],
        attrs=dict(op.node_def.attr),
        dtypes=[t.dtype for t in op.outputs],
        name=name,
    )
    return tuple(made.outputs)


def _read(trace: Trace, device: str, made: Sequence[int]) -> dict[int, OpProfile]:
    """Number of an op → its profile, from a trace; an op that TensorFlow did not run has none.

    ``made`` has the bytes of the outputs of each op.
    """
    runs: dict[int, list[Execution]] = {}
    for run in trace.executions:
        name, _, number = run.name.rpartition("/")[2].partition("_")
        if name == _NAME and number.isdigit():
            runs.setdefault(int(number), []).append(run)
    allocations = [a for a in trace.on(device) if not a.older]
    times_s = [a.time_s for a in allocations]

    def workspace(run: Execution, made: int) -> int:
        """The most bytes allocated during a run, minus the outputs that are left at its end."""
        within = slice(bisect_left(times_s, run.start_s), bisect_right(times_s, run.start_s + run.seconds))
        live = np.cumsum([0, *(a.delta for a in allocations[within])])
        return int(live.max() - min(live[-1], made))

    return {
        k: OpProfile.of_runs([r.seconds for r in warm], max(workspace(r, made[k]) for r in warm))
        for k, (_, *warm) in runs.items()
        if warm
    }


def _run_compiled(run: Callable[[], object], device: str, made: int) -> OpProfile:
    """The profile of a function that XLA compiles, on a CPU: TensorFlow's trace does not name its kernels.

    ``made`` is the bytes of its outputs.
    """
    with tf.init_scope(), tf.device(device):
        seconds = [timeit.timeit(run, number=1) for _ in range(_LEAST_RUNS)]
        with TraceRecorder() as recorder:
            outputs = run()
            del outputs
    live = np.cumsum([0, *(a.delta for a in recorder.trace.on(device) if not a.older)])
    return OpProfile.of_runs(seconds, int(max(live.max() - made, 0)))


def _run_on_gpu(run: Callable[[], object], device: str) -> OpProfile:
    """The profile on a GPU, where kernels are asynchronous: by runs in a row."""
    empty = tf.function(lambda: None, autograph=False).get_concrete_function()
    empty()
    seconds = max(_seconds_in_a_row(run) - _seconds_in_a_row(empty), 0.0)
    return OpProfile(seconds=seconds, workspace=_workspace_on_gpu(run, device))


def _workspace_on_gpu(run: Callable[[], object], device: str) -> int:
    """The workspace by the allocator's statistics, which count whole chunks; 0 if it keeps none."""
    try:
        tf.config.experimental.reset_memory_stats(device)
    except ValueError:
        return 0
    outputs = run()
    tf.test.experimental.sync_devices()
    counted = tf.config.experimental.get_memory_info(device)
    del outputs
    return int(counted["peak"] - counted["current"])


def _seconds_in_a_row(run: Callable[[], object]) -> float:
    tf.test.experimental.sync_devices()
    start = time.perf_counter()
    runs = _repeat(run)
    tf.test.experimental.sync_devices()
    return (time.perf_counter() - start) / runs


def _repeat(run: Callable[[], object]) -> int:
    """Run for ``_SPENT_S`` seconds and ``_LEAST_RUNS`` times, or ``_LONG_S`` seconds; the number of runs."""
    start = time.perf_counter()
    for k in range(_MOST_RUNS):
        if time.perf_counter() - start > (_SPENT_S if k >= _LEAST_RUNS else _LONG_S):
            return k
        run()
    return _MOST_RUNS


def _real(tensor: tf.Tensor | tf.TensorSpec) -> tf.Tensor:
    """A tensor of the same shape and dtype with made-up values."""
    dtype, shape = tensor.dtype, tuple(tensor.shape)
    if not (dtype.is_floating or dtype.is_complex or dtype.is_integer or dtype.is_bool):
        raise NotMeasurableError(f"no values can be made up for an input of {dtype.name}")
    if dtype.is_floating or dtype.is_complex:
        return tf.constant(np.resize(_numbers(dtype.as_numpy_dtype), shape), dtype)
    return tf.zeros(shape, dtype)


def _variable(handle: tf.Tensor) -> tf.Variable:
    """A variable like the one behind a handle, with made-up values."""
    specs = resource_specs(handle)
    if len(specs) != 1 or not specs[0].shape.is_fully_defined():
        raise NotMeasurableError("the shape of a variable is not known")
    return tf.Variable(_real(specs[0]))


@cache
def _numbers(dtype: type[np.generic]) -> np.ndarray[Any, np.dtype[Any]]:
    """Random numbers, drawn once: drawing all values of a tensor takes longer than most ops."""
    return np.random.default_rng(0).standard_normal(_PATTERN).astype(dtype)

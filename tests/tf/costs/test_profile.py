"""One op, run alone: its workspace is measured; one that can't run alone is an error that says why."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
import tensorflow as tf

from checkmate.cost import OpProfile
from checkmate_tf.costs import profile
from checkmate_tf.costs.events import ProfilerBusyError, TraceRecorder
from checkmate_tf.costs.profile import NotMeasurableError, constant_inputs, profile_in_turn
from checkmate_tf.private import emit_op

SIDE, CHANNELS = 128, 16


def only(
    op_type: str, body: Callable[..., object], *shapes: list[int], dtype: tf.DType = tf.float32
) -> tf.Operation:
    """The first op of a type in a function's graph."""
    specs = [tf.TensorSpec(shape, dtype) for shape in shapes]
    graph = tf.function(body, autograph=False).get_concrete_function(*specs).graph
    return next(op for op in graph.get_operations() if op.type == op_type)


def profile_op(op: tf.Operation) -> OpProfile:
    """The profile of one op alone."""
    (found,) = profile_in_turn([op])
    if isinstance(found, NotMeasurableError):
        raise found
    return found


def pooled(x: tf.Tensor, y: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    """A kernel that notes the position of each maximum, in int64, before it takes the gradient."""
    window = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"}
    return tf.raw_ops.MaxPoolGrad(orig_input=x, orig_output=y, grad=dy, **window)


def pooling() -> tf.Operation:
    full, half = ([2, side, side, CHANNELS] for side in (SIDE, SIDE // 2))
    return only("MaxPoolGrad", pooled, full, half, half)


def test_the_workspace_is_all_that_is_allocated_beyond_the_outputs() -> None:
    where_the_maxima_are = 2 * (SIDE // 2) ** 2 * CHANNELS * 8
    assert profile_op(pooling()).workspace >= where_the_maxima_are
    assert profile_op(only("Softmax", tf.nn.softmax, [1024, 512])).workspace == 0


def test_the_code_for_gpus_finds_the_workspace_on_a_cpu() -> None:
    try:
        tf.config.experimental.reset_memory_stats("CPU:0")
    except ValueError as error:  # TF_ENABLE_ONEDNN_OPTS=0
        pytest.skip(str(error))
    found = profile._run_on_gpu(profile._ready(pooling(), "alone"), "CPU:0")
    exact = profile_op(pooling()).workspace
    # An allocator counts whole chunks, and does not always split a larger one.
    assert exact <= found.workspace <= 2 * exact


def test_several_ops_need_no_more_memory_than_one() -> None:
    softmax = only("Softmax", tf.nn.softmax, [1024, 512])

    def peak(ops: int) -> int:
        before = tf.config.experimental.get_memory_info("CPU:0")["current"]
        tf.config.experimental.reset_memory_stats("CPU:0")
        profile_in_turn([softmax] * ops, "CPU:0")
        return int(tf.config.experimental.get_memory_info("CPU:0")["peak"]) - before

    try:
        tf.config.experimental.reset_memory_stats("CPU:0")
    except ValueError as error:  # TF_ENABLE_ONEDNN_OPTS=0
        pytest.skip(str(error))
    assert peak(3) < peak(1) + 2**20


def test_paddings_keep_their_values() -> None:
    padding = only("Pad", lambda x: tf.pad(x, [[0, 0], [1, 1]]), [64, 64])
    assert profile_op(padding).seconds > 0


def test_more_work_takes_longer() -> None:
    small, large = (profile_op(only("MatMul", tf.linalg.matmul, [n, n], [n, n])) for n in (8, 512))
    assert 0 < small.seconds < large.seconds


def test_ops_that_only_grappler_makes_are_measured() -> None:
    def fused(a: tf.Tensor, b: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
        settings = {
            "T": {"type": tf.float32.as_datatype_enum},
            "num_args": {"i": 1},
            "fused_ops": {"list": {"s": [b"BiasAdd", b"Relu"]}},
        }
        attrs = {name: tf.compat.v1.AttrValue(**value) for name, value in settings.items()}
        op = emit_op(a.graph, "_FusedMatMul", [a, b, bias], attrs=attrs, dtypes=[tf.float32], name="fused")
        return op.outputs[0]

    assert profile_op(only("_FusedMatMul", fused, [16, 8], [8, 4], [4])).seconds > 0


def test_a_shape_that_the_graph_knows_is_not_made_up() -> None:
    def spread(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        first, _ = tf.raw_ops.ShapeN(input=[y, x])
        return tf.broadcast_to(x, [4, 3]) + tf.broadcast_to(x, first)

    graph = (
        tf.function(spread, autograph=False)
        .get_concrete_function(tf.TensorSpec([3]), tf.TensorSpec([4, 3]))
        .graph
    )
    spreads = [op for op in graph.get_operations() if op.type == "BroadcastTo"]
    for op in spreads:
        assert constant_inputs(op)[1].tolist() == [4, 3]
        assert profile_op(op).seconds > 0


def test_an_op_of_constants_costs_nothing() -> None:
    """TensorFlow runs it once, before the first run of the function."""
    op = only("Range", lambda x: x[: tf.range(0, 4, 2)[-1]], [4])
    assert sorted(constant_inputs(op)) == [0, 1, 2]
    assert profile_op(op) == OpProfile(0.0, 0)


UNFIT = {
    "no outputs": ("NoOp", lambda x: (tf.no_op(), x)[1], [4]),
    "no values can be made up": ("StringLength", lambda x: tf.strings.length(tf.strings.as_string(x)), [4]),
    "unknown shapes": ("Unique", lambda x: tf.unique(x).y, [4]),
    "can't run alone": (
        "FloorMod",
        lambda x: tf.math.floormod(tf.cast(x, tf.int32), tf.cast(x, tf.int32)),
        [4],
    ),
}


@pytest.mark.parametrize("why", UNFIT)
def test_the_error_for_an_op_that_can_not_run_alone_says_why(why: str) -> None:
    op_type, body, shape = UNFIT[why]
    with pytest.raises(NotMeasurableError, match=why):
        profile_op(only(op_type, body, shape))


def test_several_ops_share_a_trace_and_an_error_spoils_no_other() -> None:
    unfit = only("Unique", lambda x: tf.unique(x).y, [4])
    asked = count()
    ops = (op for op, _ in zip([pooling(), unfit, pooling()], asked, strict=False))
    first, why, second = profile_in_turn(ops, "CPU:0")
    assert next(asked) == 3
    assert isinstance(why, NotMeasurableError)
    assert first.workspace == second.workspace > 0


def test_measuring_inside_a_profiler_is_refused() -> None:
    with TraceRecorder(), pytest.raises(ProfilerBusyError):
        profile_op(pooling())


def test_a_plan_may_be_made_while_a_function_is_traced() -> None:
    found = []

    @tf.function(autograph=False)
    def outer(x: tf.Tensor) -> tf.Tensor:
        found.append(profile_op(pooling()))
        return x

    outer(tf.zeros([2]))
    assert found[0].workspace > 0

"""Cost models: measured costs are measured once; computed costs have known values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import keras
import pytest
import tensorflow as tf

import checkmate
from checkmate.cost import DEVICES, OpProfile
from checkmate.framework import pricing
from checkmate_tf.capture.function_capture import capture
from checkmate_tf.costs import price as costs
from checkmate_tf.costs import profile
from checkmate_tf.costs.events import ProfilerBusyError, TraceRecorder
from checkmate_tf.costs.price import price, profile_ops
from checkmate_tf.planning.options import Options
from checkmate_tf.planning.priced_step import price_step
from checkmate_tf.tracing.step_graph import trace

BATCH, WIDTH = 12, 20


@pytest.fixture(scope="module")
def ops() -> list[tf.Operation]:
    """A layer, an activation, dropout, a loss and the gradients."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(3 * WIDTH, activation="softmax"), keras.layers.Dropout(0.5)]
    model = keras.Sequential([keras.layers.Input((WIDTH,)), *layers])

    @tf.function(autograph=False)
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True))
        return tape.gradient(loss, model.trainable_variables)

    return list(step.get_concrete_function(tf.TensorSpec([BATCH, WIDTH])).graph.get_operations())


@pytest.fixture
def groups(ops: list[tf.Operation]) -> list[tuple[tf.Operation, ...]]:
    """Each op alone; the last two together, and a group of none."""
    return [*((op,) for op in ops[:-2]), tuple(ops[-2:]), ()]


@pytest.fixture
def bare(groups: list[tuple[tf.Operation, ...]]) -> checkmate.DFGraph:
    n = len(groups)
    graph = checkmate.DFGraph.from_nodes(
        cost=[0] * n, size=[1000] * n, deps=[[]] + [[k] for k in range(n - 1)]
    )
    return replace(graph, ops=tuple(replace(op, workspace=7) for op in graph.ops))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty disk and an empty memory."""
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(pricing, "_memory", {})
    return tmp_path


def priced(graph: checkmate.DFGraph, groups: Sequence[Sequence[tf.Operation]]) -> checkmate.DFGraph:
    """The graph with measured costs."""
    return price(graph, groups, profiles=profile_ops([op for group in groups for op in group]))


def the(op_type: str, ops: list[tf.Operation]) -> int:
    return next(k for k, op in enumerate(ops) if op.type == op_type)


def timed(ops: Sequence[tf.Operation]) -> list[str]:
    """The steps that a profile of ops reports, one for each op that is timed."""
    seen: list[checkmate.Progress] = []
    profile_ops(ops, on_progress=seen.append)
    return [report.step for report in seen]


def test_the_next_process_reads_measured_costs_from_disk(
    bare: checkmate.DFGraph,
    groups: list[tuple[tf.Operation, ...]],
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(OpProfile, "to_repeat", False)  # however busy this machine is
    first = priced(bare, groups)
    assert len(list(cache.rglob("*.json"))) == 1
    pricing._memory.clear()
    assert timed([op for group in groups for op in group]) == []
    assert priced(bare, groups).digest == first.digest
    assert first.cost_unit == "s"


def test_each_distinct_op_is_timed_once(ops: list[tf.Operation], cache: Path) -> None:
    steps = timed(ops + ops)
    assert 0 < len(steps) < len(ops)
    assert steps[0].startswith(f"timing op 1 of {len(steps)}: ")
    assert timed(ops) == []


def test_a_group_costs_the_sum_of_its_ops_and_its_workspace_stays(
    bare: checkmate.DFGraph, groups: list[tuple[tf.Operation, ...]], ops: list[tf.Operation]
) -> None:
    known = {op: OpProfile(float(k), 5) for k, op in enumerate(ops)}
    for op, group in zip(price(bare, groups, profiles=known).ops, groups, strict=True):
        assert op.cost == sum(known[x].seconds for x in group)
        assert op.workspace == 7


def test_sources_are_free_and_ops_with_state_are_charged_by_their_bytes(ops: list[tf.Operation]) -> None:
    measured = profile_ops(ops)
    stateful = [op for op in ops if op.type == "AssignVariableOp"]  # of the seed of dropout
    reads = [op for op in ops if op.type in ("ReadVariableOp", "Const", "Placeholder")]
    assert stateful
    assert all(0 < measured[op].seconds < 1e-6 for op in stateful)
    assert all(measured[op] == OpProfile(0.0, 0) for op in reads)


def test_calls_of_functions_are_charged_by_their_bytes(cache: Path) -> None:
    @tf.function(autograph=False)
    def loop(x: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(lambda x: True, lambda x: (x * 2,), (x,), maximum_iterations=3)[0]

    graph = loop.get_concrete_function(tf.TensorSpec([100])).graph
    (op,) = (op for op in graph.get_operations() if "While" in op.type)
    assert timed([op]) == []
    assert profile_ops([op])[op].seconds > 0


def test_ops_that_may_differ_in_cost_are_timed_one_by_one(cache: Path) -> None:
    def graph(body: object, *specs: tf.TensorSpec) -> tf.Operation:
        traced = tf.function(body, autograph=False).get_concrete_function(*specs)
        return next(t.op.inputs[0].op for t in traced.outputs)

    one = tf.TensorSpec([4, 6])
    same = [graph(tf.nn.softmax, one), graph(lambda x: tf.nn.softmax(x, name="other"), one)]
    other = [
        graph(tf.nn.softmax, tf.TensorSpec([6, 4])),
        graph(tf.nn.softmax, tf.TensorSpec([4, 6], tf.float16)),
        graph(tf.nn.log_softmax, one),
        graph(lambda x: tf.reduce_sum(x, 0), one),
        graph(lambda x: tf.reduce_sum(x, 1), one),
    ]
    assert len(timed(same)) == 1
    assert len(timed(other)) == len(other)


def test_flops_are_counted(
    bare: checkmate.DFGraph, groups: list[tuple[tf.Operation, ...]], ops: list[tf.Operation]
) -> None:
    counted = price(bare, groups, "flops")
    assert counted.cost_unit == "flop"
    assert counted.ops[the("MatMul", ops)].cost == 2 * BATCH * WIDTH * 3 * WIDTH
    assert counted.ops[the("Softmax", ops)].cost == BATCH * 3 * WIDTH
    assert counted.ops[-1].cost == 0


def test_workspaces_are_measured_on_demand_and_a_group_needs_the_largest_of_its_ops(cache: Path) -> None:
    function = tf.function(lambda x: tf.nn.conv2d(tf.tanh(x), tf.ones([3, 3, 64, 64]), 1, "SAME"))
    traced = trace(capture(function.get_concrete_function(tf.TensorSpec([8, 32, 32, 64]))))
    options = {
        "measured": Options.parse(cost_model="profiled"),
        "on demand": Options.parse(cost_model="flops", workspaces=True),
        "not measured": Options.parse(cost_model="flops", workspaces=False),
    }
    steps = {name: price_step(traced, given) for name, given in options.items()}
    found = {name: [op.workspace for op in step.graph.ops] for name, step in steps.items()}
    assert found["measured"] == found["on demand"]
    assert not any(found["not measured"])
    measured = steps["measured"]
    for size, v in zip(found["measured"], measured.ordered.order, strict=True):
        assert size >= max(measured.profiles[op].workspace for op in traced.groups[v])


def test_the_roofline_of_another_device(
    bare: checkmate.DFGraph, groups: list[tuple[tf.Operation, ...]], ops: list[tf.Operation]
) -> None:
    timed = price(bare, groups, "roofline-a100-80gb")
    assert timed.ops[the("Softmax", ops)].cost == pytest.approx(2 * 1000 / DEVICES["A100-80GB"].bytes_per_s)
    assert timed.cost_unit == "s"
    assert timed.ops[-1].cost == 0


def test_the_roofline_of_this_cpu_is_measured_once(
    bare: checkmate.DFGraph, groups: list[tuple[tf.Operation, ...]], cache: Path
) -> None:
    timed = []
    for _ in range(2):
        costs._of_this_cpu.cache_clear()
        timed.append(price(bare, groups, "roofline"))
    assert timed[0].digest == timed[1].digest
    assert len(list(cache.rglob("*.json"))) == 1
    costs._of_this_cpu.cache_clear()


def test_measuring_inside_a_profiler_is_refused_with_the_way_out(
    ops: list[tf.Operation], cache: Path
) -> None:
    with TraceRecorder(), pytest.raises(ProfilerBusyError, match="run one step of the compiled model before"):
        profile_ops(ops)


def test_an_op_that_finds_no_room_to_be_measured_is_warned_of(
    ops: list[tf.Operation], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def exhausted(op: tf.Operation, name: str) -> object:
        raise tf.errors.ResourceExhaustedError(None, None, "no memory is left")

    monkeypatch.setattr(pricing, "_memory", {})
    monkeypatch.setattr(profile, "_ready", exhausted)
    found = profile_ops([op for op in ops if op.type == "MatMul"][:1], on_disk=False)
    assert [known.workspace for known in found.values()] == [0]
    (said,) = (record.message for record in caplog.records if record.levelname == "WARNING")
    assert "without a workspace: MatMul alone, on made-up inputs, runs out of memory" in said

"""Cost models: what is measured is measured once; what is computed has known values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import keras
import pytest
import tensorflow as tf

import checkmate
from checkmate.cost import DEVICES, UnitCost
from checkmate.framework import measuring
from checkmate_tf import costs
from checkmate_tf.costs import price, profile_ops
from checkmate_tf.events import ProfilerBusyError, TraceRecorder

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
    monkeypatch.setattr(measuring, "_memory", {})
    return tmp_path


def the(op_type: str, ops: list[tf.Operation]) -> int:
    return next(k for k, op in enumerate(ops) if op.type == op_type)


def test_what_was_measured_once_is_taken_from_disk_by_the_next_process(
    bare: checkmate.DFGraph,
    groups: list[tuple[tf.Operation, ...]],
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = price(bare, groups)
    assert len(list(cache.rglob("*.json"))) == 1
    measuring._memory.clear()
    monkeypatch.setattr(costs, "profile_in_turn", pytest.fail)
    assert price(bare, groups).digest == first.digest
    assert first.cost_unit == "s"


def test_the_off_switch_leaves_the_disk_alone(ops: list[tf.Operation], cache: Path) -> None:
    profile_ops(ops, on_disk=False)
    assert not list(cache.iterdir())


def test_each_distinct_op_is_measured_once_and_told(ops: list[tf.Operation], cache: Path) -> None:
    seen: list[checkmate.Progress] = []
    profile_ops(ops + ops, on_progress=seen.append)
    distinct = {costs._signature(op) for op in ops if costs._can_run_alone(op)}
    assert len(seen) == len(distinct) < len(ops)
    assert seen[0].step.startswith(f"timing op 1 of {len(distinct)}: ")


def test_an_interrupt_keeps_what_was_measured(
    ops: list[tf.Operation], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "_SAVED_EVERY", 2)
    seen: list[checkmate.Progress] = []

    def stop(report: checkmate.Progress) -> None:
        seen.append(report)
        if len(seen) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        profile_ops(ops, on_progress=stop)
    measuring._memory.clear()
    rest: list[checkmate.Progress] = []
    profile_ops(ops, on_progress=rest.append)
    assert len(rest) == len({costs._signature(op) for op in ops if costs._can_run_alone(op)}) - 2


def test_a_group_costs_the_sum_of_its_ops_and_needs_what_the_hungriest_does(
    bare: checkmate.DFGraph, groups: list[tuple[tf.Operation, ...]], ops: list[tf.Operation]
) -> None:
    measured, priced = profile_ops(ops), price(bare, groups)
    for op, group in zip(priced.ops, groups, strict=True):
        assert op.cost == pytest.approx(sum(measured[x].seconds for x in group))
        assert op.workspace == 7 + max((measured[x].workspace for x in group), default=0)


def test_sources_are_free_and_what_has_state_is_charged_by_its_bytes(ops: list[tf.Operation]) -> None:
    measured = profile_ops(ops)
    stateful = [op for op in ops if op.type == "AssignVariableOp"]  # of the seed of dropout
    reads = [op for op in ops if op.type in ("ReadVariableOp", "Const", "Placeholder")]
    assert stateful
    assert all(0 < measured[op].seconds < 1e-6 for op in stateful)
    assert all(measured[op] == (0.0, 0) for op in reads)


def test_calls_of_functions_are_charged_by_their_bytes() -> None:
    @tf.function(autograph=False)
    def loop(x: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(lambda x: True, lambda x: (x * 2,), (x,), maximum_iterations=3)[0]

    graph = loop.get_concrete_function(tf.TensorSpec([100])).graph
    (op,) = (op for op in graph.get_operations() if "While" in op.type)
    assert not costs._can_run_alone(op)
    assert profile_ops([op])[op].seconds > 0


def test_a_signature_tells_apart_what_may_differ_in_cost() -> None:
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
    assert costs._signature(same[0]) == costs._signature(same[1])
    assert len({costs._signature(op) for op in [same[0], *other]}) == 6


def test_flops_are_counted_and_workspaces_measured_only_on_demand(
    bare: checkmate.DFGraph, groups: list[tuple[tf.Operation, ...]], ops: list[tf.Operation]
) -> None:
    counted = price(bare, groups, "flops", workspaces=False)
    assert counted.cost_unit == "flop"
    assert counted.ops[the("MatMul", ops)].cost == 2 * BATCH * WIDTH * 3 * WIDTH
    assert counted.ops[the("Softmax", ops)].cost == BATCH * 3 * WIDTH
    assert counted.ops[-1].cost == 0
    assert all(op.workspace == 7 for op in counted.ops)
    measured = [price(bare, groups, model) for model in ("profiled", "flops")]
    assert len({tuple(op.workspace for op in graph.ops) for graph in measured}) == 1


def test_the_roofline_of_a_device_that_is_not_here(
    bare: checkmate.DFGraph, groups: list[tuple[tf.Operation, ...]], ops: list[tf.Operation]
) -> None:
    timed = price(bare, groups, "roofline-a100-80gb", workspaces=False)
    assert timed.ops[the("Softmax", ops)].cost == pytest.approx(2 * 1000 / DEVICES["A100-80GB"].bytes_per_s)
    assert timed.cost_unit == "s"
    assert timed.ops[-1].cost == 0


def test_the_roofline_of_this_cpu_is_measured_once(
    bare: checkmate.DFGraph, groups: list[tuple[tf.Operation, ...]], cache: Path
) -> None:
    timed = []
    for _ in range(2):
        costs._of_this_cpu.cache_clear()
        timed.append(price(bare, groups, "roofline", workspaces=False))
    assert timed[0].digest == timed[1].digest
    assert len(list(cache.rglob("*.json"))) == 1
    costs._of_this_cpu.cache_clear()


def test_any_installed_cost_model_and_any_object_will_do(
    bare: checkmate.DFGraph, groups: list[tuple[tf.Operation, ...]]
) -> None:
    by_name, by_value = (price(bare, groups, model, workspaces=False) for model in ("unit", UnitCost()))
    assert by_name.digest == by_value.digest


@pytest.mark.parametrize("wrong", [3, None, UnitCost])
def test_what_is_no_cost_model_is_refused(wrong: object) -> None:
    with pytest.raises(TypeError, match="'profiled', 'roofline', 'flops'"):
        price(checkmate.DFGraph.from_nodes(cost=[], size=[], deps=[]), [], wrong)


def test_a_plan_inside_of_a_profiler_is_refused_with_the_way_out(
    ops: list[tf.Operation], cache: Path
) -> None:
    with TraceRecorder(), pytest.raises(ProfilerBusyError, match="run one step of the compiled model before"):
        profile_ops(ops)

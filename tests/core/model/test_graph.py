"""DFGraph: derived values, and invalid graphs, which are rejected with the place."""

from __future__ import annotations

import copy
import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from checkmate import (
    Compute,
    DFGraph,
    GraphError,
    Op,
    Schedule,
    Status,
    Tensor,
    keep_all_peak,
    simulate,
    solve,
)
from checkmate.testing.strategies import graphs

A, B = Tensor(name="a", size=1), Tensor(name="b", size=2)


def op(**fields: Any) -> Op:
    return Op(**({"name": "f", "inputs": (), "outputs": (), "cost": 1.0} | fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tensors": (A,)}, r"tensors\[0\] \('a'\): has no producer and is not a graph input"),
        ({"tensors": (A,), "inputs": (0, 0)}, r"inputs lists a tensor twice"),
        ({"tensors": (A,), "inputs": (1,)}, r"inputs has the index 1, but there are 1 tensors"),
        ({"tensors": (A,), "inputs": (-1,)}, r"inputs has the index -1"),
        ({"tensors": (A,), "inputs": (True,)}, r"inputs has the index True"),
        ({"tensors": (A,), "inputs": (0,), "outputs": (3,)}, r"outputs has the index 3"),
        ({"tensors": (A,), "inputs": (0,), "fixed_size": -1}, r"fixed_size is -1"),
        ({"tensors": (Tensor(name="a", size=-1),), "inputs": (0,)}, r"tensors\[0\] \('a'\): size is -1"),
        ({"tensors": (Tensor(name="a", size=1.5),), "inputs": (0,)}, r"tensors\[0\] \('a'\): size is 1.5"),  # type: ignore[arg-type]
        ({"tensors": (Tensor(name="a", size=True),), "inputs": (0,)}, r"size is True"),
        ({"tensors": (Tensor(name="a", size=2**62),), "inputs": (0,)}, r"tensors: .* less than 2\^63"),
        ({"tensors": (A,), "ops": (op(outputs=(0,)), op(outputs=(0,)))}, r"ops\[1\] \('f'\): makes tensor 0"),
        ({"tensors": (A,), "inputs": (0,), "ops": (op(outputs=(0,)),)}, r"ops\[0\] \('f'\): makes tensor 0"),
        (
            {"tensors": (A,), "ops": (op(inputs=(0,), outputs=(0,)),)},
            r"ops\[0\] \('f'\): reads its own output, tensor 0 'a'",
        ),
        (
            {
                "tensors": (A, B),
                "ops": (op(inputs=(1,), outputs=(0,)), op(inputs=(0,), outputs=(1,))),
            },
            r"ops\[0\] \('f'\): reads tensor 1 'b', which op 1 'f' makes, after it: a cycle, or ops out",
        ),
        ({"tensors": (), "ops": (op(cost=-1.0),)}, r"ops\[0\] \('f'\): cost is -1.0"),
        ({"tensors": (), "ops": (op(cost=float("nan")),)}, r"cost is nan"),
        ({"tensors": (), "ops": (op(cost=float("inf")),)}, r"cost is inf"),
        ({"tensors": (), "ops": (op(cost="1"),)}, r"cost is '1'"),
        ({"tensors": (), "ops": (op(cost=True),)}, r"cost is True"),
        ({"tensors": (), "ops": (op(workspace=-3),)}, r"workspace is -3"),
        (
            {"tensors": (), "ops": (op(recomputable="no"),)},
            r"\('f'\): recomputable is 'no', must be True",
        ),
        (
            {"tensors": (), "ops": (op(backward=1),)},
            r"\('f'\): backward is 1, must be True",
        ),
        ({"tensors": (), "ops": (op(workspace=2**62),), "fixed_size": 2**62}, r"largest workspace .* 2\^63"),
        ({"tensors": (), "ops": (op(cost=10**400),)}, r"ops\[0\] \('f'\): cost is 1000"),
        ({"tensors": (), "ops": (op(cost=9e299), op(cost=9e299))}, r"ops: all costs together are 1.8e\+300"),
        ({"tensors": (A,), "inputs": ([0],)}, r"inputs has the index \[0\]"),
        ({"tensors": (A,), "ops": (op(outputs=({},)),)}, r"ops\[0\] \('f'\): outputs has the index {}"),
        (
            {"tensors": (A,), "inputs": (0,), "ops": (op(reuses=(0,)),)},
            r"ops\[0\] \('f'\): reuses tensor 0 'a', which is none of its inputs",
        ),
        (
            {"tensors": (A,), "inputs": (0,), "ops": (op(reuses=(1,)),)},
            r"ops\[0\] \('f'\): reuses has the index 1",
        ),
    ],
)
def test_an_invalid_graph_is_rejected(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        DFGraph(**({"ops": ()} | fields))


def test_bytes_at_the_limit_are_counted_exactly() -> None:
    (tensor,) = tensors = (Tensor(name="a", size=2**61),)
    largest = op(outputs=(0,), workspace=2**61 - 1)
    graph = DFGraph(ops=(largest,), tensors=tensors, fixed_size=2**61)
    twice = simulate(graph, Schedule.of([Compute(0), Compute(0)]))
    assert twice.peak == twice.memory[1] == 2**61 + 2 * tensor.size + largest.workspace == 2**63 - 1
    with pytest.raises(GraphError, match=r"must be less than 2\^63"):
        dataclasses.replace(graph, fixed_size=2**61 + 1)


def test_lists_and_numpy_integers_become_tuples_of_plain_ones() -> None:
    numbers = np.array([100, 100], dtype=np.int8)
    lists: Any = {"inputs": [np.uint8(0)], "outputs": [np.uint8(1)], "workspace": np.int8(100)}
    graph = DFGraph(
        ops=[op(**lists)],  # type: ignore[arg-type]
        tensors=[Tensor(name="a", size=numbers[0]), Tensor(name="b", size=numbers[1])],  # type: ignore[arg-type]
        inputs=[np.uint8(0)],  # type: ignore[arg-type]
        outputs=[np.uint8(1)],  # type: ignore[arg-type]
        fixed_size=numbers[0],
    )
    assert hash(graph) == hash(dataclasses.replace(graph))
    assert graph.inputs == (0,)
    assert type(graph.inputs[0]) is type(graph.ops[0].inputs[0]) is int
    assert keep_all_peak(graph) == 400


def test_numpy_costs_and_flags_become_plain_ones() -> None:
    fields: dict[str, Any] = {"cost": np.float32(0.5), "recomputable": np.False_, "backward": np.True_}
    node = DFGraph(ops=(op(**fields),), tensors=()).ops[0]
    assert (type(node.cost), node.cost) == (float, 0.5)
    assert node.recomputable is False
    assert node.backward is True


def test_the_empty_graph_is_solved_by_the_empty_schedule() -> None:
    empty = DFGraph(ops=(), tensors=())
    answer = solve(empty, budget=1)
    assert answer.status is Status.OPTIMAL
    assert answer.schedule is not None
    assert len(answer.schedule) == answer.cost == answer.peak == 0
    assert simulate(empty, Schedule.of([])).peak == 0


def test_from_nodes_checks_its_columns() -> None:
    with pytest.raises(GraphError, match=r"^from_nodes: 2 costs, but 1 sizes$"):
        DFGraph.from_nodes(cost=[1, 1], size=[1], deps=[[], []])
    with pytest.raises(GraphError, match=r"^from_nodes: 1 costs, but 2 names$"):
        DFGraph.from_nodes(cost=[1], size=[1], deps=[[]], names=["a", "b"])
    with pytest.raises(GraphError, match=r"reads its own output, tensor 0 '0'"):
        DFGraph.from_nodes(cost=[1], size=[1], deps=[[0]])
    with pytest.raises(GraphError, match="index 5"):
        DFGraph.from_nodes(cost=[1], size=[1], deps=[[5]])


@given(graph=graphs())
def test_derived_arrays_agree_with_the_ops(graph: DFGraph) -> None:
    for i, node in enumerate(graph.ops):
        assert tuple(graph.reads.row(i)) == node.inputs
        assert tuple(graph.makes.row(i)) == node.outputs
        assert tuple(graph.reads.indices[graph.reads.rows == i]) == node.inputs
        assert all(graph.producer[t] == i for t in node.outputs)
    for t in range(graph.n_tensors):
        assert [i for i, node in enumerate(graph.ops) if t in node.inputs] == list(graph.readers.row(t))
        assert (graph.producer[t] == -1) == (t in graph.inputs)
    for array in (graph.sizes, graph.costs, graph.workspaces, graph.producer, *graph.reads, *graph.readers):
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True
    assert not copy.deepcopy(graph).costs.flags.writeable


@given(graph=graphs())
def test_the_digest_depends_on_content_not_on_names(graph: DFGraph) -> None:
    first = graph.ops[0]
    first_with = functools.partial(dataclasses.replace, first)
    renamed = dataclasses.replace(
        graph,
        name="other",
        ops=tuple(dataclasses.replace(node, name="x") for node in graph.ops),
        tensors=tuple(dataclasses.replace(tensor, name="y") for tensor in graph.tensors),
    )
    assert renamed.digest == graph.digest
    for other in (
        dataclasses.replace(graph, fixed_size=graph.fixed_size + 1),
        dataclasses.replace(graph, cost_unit="furlong"),
        dataclasses.replace(graph, ops=(first_with(cost=first.cost + 1), *graph.ops[1:])),
        dataclasses.replace(
            graph,
            ops=(
                dataclasses.replace(graph.ops[0], recomputable=not graph.ops[0].recomputable),
                *graph.ops[1:],
            ),
        ),
    ):
        assert other.digest != graph.digest


def test_reused_inputs_are_part_of_the_digest() -> None:
    chain = DFGraph.from_nodes(cost=[1, 1], size=[4, 4], deps=[[], [0]])
    second = dataclasses.replace(chain.ops[1], reuses=(0,))
    assert dataclasses.replace(chain, ops=(chain.ops[0], second)).digest != chain.digest


def test_equal_graphs_have_equal_digests() -> None:
    plus, minus = (DFGraph.from_nodes(cost=[cost], size=[4], deps=[[]]) for cost in (0.0, -0.0))
    assert plus == minus
    assert plus.digest == minus.digest


def test_the_digest_is_the_same_on_every_machine() -> None:
    chain = DFGraph.from_nodes(cost=[1, 0.5], size=[4, 2], deps=[[], [0]], cost_unit="s")
    assert chain.digest == "0be42819bd2b350c3fdf52d5f539fe03364b59f63e75423b27d1b2f3a1e02fa0"

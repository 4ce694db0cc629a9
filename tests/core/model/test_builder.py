"""GraphBuilder: any graph can be declared by name, in any order; errors name the place."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from checkmate import DFGraph, GraphBuilder, GraphError, floor
from checkmate.testing.strategies import graphs


def written(graph: DFGraph, order: list[int]) -> DFGraph:
    """The same graph, its ops declared in another order."""
    names = [f"t{t}" for t in range(graph.n_tensors)]
    b = GraphBuilder(graph.name, cost_unit=graph.cost_unit, fixed_size=graph.fixed_size)
    for t in graph.inputs:
        b.input(names[t], graph.tensors[t].size)
    b.output(*(names[t] for t in graph.outputs))
    for v in order:
        op = graph.ops[v]
        b.op(
            f"op{v}",
            reads=[names[t] for t in op.inputs],
            makes={names[t]: graph.tensors[t].size for t in op.outputs},
            cost=op.cost,
            workspace=op.workspace,
            recomputable=op.recomputable,
            backward=op.backward,
            reuses=[names[t] for t in op.reuses],
        )
    return b.build()


@given(graph=graphs())
def test_every_graph_can_be_written_by_name(graph: DFGraph) -> None:
    assume(graph.outputs)
    named = dataclasses.replace(
        graph, tensors=tuple(dataclasses.replace(x, name=f"t{t}") for t, x in enumerate(graph.tensors))
    )
    assert written(graph, list(range(graph.n_ops))) == named


@given(data=st.data())
def test_ops_may_be_written_in_any_order(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    assume(graph.outputs)
    order = data.draw(st.permutations(range(graph.n_ops)))
    other = written(graph, list(order))
    for op in other.ops:
        original = graph.ops[int(op.name.removeprefix("op"))]
        assert [other.tensors[t].name for t in op.inputs] == [f"t{t}" for t in original.inputs]
        assert [other.tensors[t].name for t in op.outputs] == [f"t{t}" for t in original.outputs]
    assert other.n_ops == graph.n_ops
    assert floor(other).size == floor(graph).size


def test_the_earlier_written_comes_first_wherever_there_is_a_choice() -> None:
    b = GraphBuilder()
    b.op("last", reads=["x", "y", "z"], makes={"end": 1})
    for name in ("z", "x", "y"):
        b.op(f"make {name}", makes={name: 1})
    b.output("end")
    assert [op.name for op in b.build().ops] == ["make z", "make x", "make y", "last"]


def test_sizes_are_bytes_or_words() -> None:
    b = GraphBuilder("net", cost_unit="s", fixed_size="1KiB")
    b.input("x", "4MiB")
    b.op("f", reads=["x", "x"], makes={"y": np.int64(5).item(), "z": "2 kB"}, workspace="0.5KiB", cost=2)
    b.output("y", "z")
    graph = b.build()
    assert graph.sizes.tolist() == [4 * 2**20, 5, 2000]
    assert (graph.fixed_size, graph.ops[0].workspace, graph.ops[0].inputs) == (1024, 512, (0,))
    assert repr(graph) == "<DFGraph 'net': 1 ops, 3 tensors, cost in s>"


def test_nothing_is_a_graph_and_inputs_may_be_outputs() -> None:
    b = GraphBuilder()
    assert b.build() == DFGraph(ops=(), tensors=())
    b.input("x", 1)
    b.output("x")
    assert b.build().outputs == (0,)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "f"}, r"^op 'f' exists already"),
        ({"makes": {"x": 1}}, r"^op 'g': tensor 'x' exists already: it is a graph input"),
        ({"makes": {"y": 1}}, r"^op 'g': tensor 'y' exists already: op 'f' makes it"),
        ({"reads": ["z"], "makes": {"z": 1}}, r"^op 'g' reads its own output 'z'"),
        ({"reads": "x"}, r"^op 'g': reads is the string 'x', must be a list: reads=\['x'\]"),
        ({"makes": ["z"]}, r"^op 'g': makes is \['z'\], must map"),
        ({"makes": {"z": "12 parsecs"}}, r"^op 'g': size of 'z': can't read '12 parsecs' as bytes"),
        ({"makes": {"z": -1}}, r"^op 'g': size of 'z': -1 bytes"),
        ({"makes": {"z": 1.5}}, r"^op 'g': size of 'z': size must be a number of bytes .* got 1.5"),
        ({"workspace": -2}, r"^op 'g': workspace: -2 bytes"),
        ({"reads": ["x"], "reuses": ["y"]}, r"^op 'g' reuses 'y', which it does not read"),
    ],
)
def test_an_invalid_declaration_is_refused_at_once_without_traces(
    fields: dict[str, Any], message: str
) -> None:
    b = GraphBuilder()
    b.input("x", 1)
    b.op("f", reads=["x"], makes={"y": 1})
    b.output("y")
    before = b.build()
    with pytest.raises(GraphError, match=message):
        b.op(**({"name": "g", "makes": {"z": 1}} | fields))
    assert b.build() == before


def test_build_refuses_unfinished_declarations() -> None:
    b = GraphBuilder(fixed_size=2)
    b.input("weights", 1)
    b.op("conv", reads=["weigths"], makes={"y": 1})
    with pytest.raises(
        GraphError, match=r"^op 'conv' reads the unknown tensor 'weigths': did you mean 'weights'"
    ):
        b.build()
    b.input("weigths", 1)
    with pytest.raises(GraphError, match=r"^no outputs: .* no op reads 'y'$"):
        b.build()
    b.output("nothing like it")
    with pytest.raises(GraphError, match=r"^the outputs name the unknown tensor .* declare it"):
        b.build()
    with pytest.raises(GraphError, match=r"^output 'nothing like it' exists already"):
        b.output("nothing like it")
    with pytest.raises(GraphError, match=r"^input 'y': tensor 'y' exists already: op 'conv' makes it"):
        b.input("y", 1)
    with pytest.raises(GraphError, match=r"^fixed_size: -1 bytes"):
        GraphBuilder(fixed_size=-1)


def test_forgotten_outputs_of_a_large_graph_are_listed_briefly() -> None:
    b = GraphBuilder()
    b.op("f", makes={f"y{i}": 1 for i in range(7)})
    with pytest.raises(GraphError, match=r"no op reads 'y0', 'y1', 'y2', 'y3', 'y4' and 2 more$"):
        b.build()


def test_a_cycle_is_named_in_the_order_of_the_data() -> None:
    b = GraphBuilder()
    b.op("start", makes={"s": 1})
    b.op("a", reads=["s", "z"], makes={"x": 1})
    b.op("b", reads=["x"], makes={"y": 1})
    b.op("c", reads=["y"], makes={"z": 1})
    b.output("z")
    with pytest.raises(GraphError) as caught:
        b.build()
    cycle = str(caught.value).split(": ")[1].split(" → ")
    assert cycle[0] == cycle[-1]
    following = {"'a'": "'b'", "'b'": "'c'", "'c'": "'a'"}
    assert all(following[one] == other for one, other in itertools.pairwise(cycle))


def test_bad_costs_are_left_to_the_graph_which_names_the_op() -> None:
    b = GraphBuilder()
    b.op("f", makes={"y": 1}, cost=float("nan"))
    b.output("y")
    with pytest.raises(GraphError, match=r"ops\[0\] \('f'\): cost is nan"):
        b.build()

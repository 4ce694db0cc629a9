"""The rules of the layer level, on a network of four layers: bytes, FLOPs and dependencies known by hand."""

from __future__ import annotations

from checkmate import DFGraph, keep_all_peak
from zoo.layers import Layer, Read, training_graph


def layer(name: str, *sources: str, size: int = 8, kept: bool = False, **flags: bool) -> Layer:
    reads = tuple(Read(source=source, size=8, kept=kept) for source in sources)
    settings = {"weights": False, "product": False, "kept": False, **flags}
    return Layer(name=name, reads=reads, size=size, flops=10.0, **settings)


def network() -> DFGraph:
    """x → a → relu, a + relu → sum → head; and a layer without a reader."""
    layers = [
        layer("a", "x", kept=True, weights=True),
        layer("relu", "a"),
        layer("nowhere", "relu"),
        layer("sum", "a", "relu", passes_gradient=True),
        layer("head", "sum", size=4, kept=True, weights=True),
    ]
    return training_graph("four", layers, inputs={"x": 16}, output="head", parameter_bytes=100)


def reads(graph: DFGraph, op: str) -> set[str]:
    (one,) = [each for each in graph.ops if each.name == op]
    return {graph.tensors[t].name for t in one.inputs}


def test_a_layer_is_two_ops_and_one_that_leads_nowhere_is_none() -> None:
    graph = network()
    names = ["a", "relu", "sum", "head"]
    backward = [f"{name}, back" for name in reversed(names)]
    assert [op.name for op in graph.ops] == [*names, "loss", *backward]
    assert [op.name for op in graph.ops if op.backward] == backward


def test_backward_reads_a_gradient_from_each_reader_and_the_tensors_of_its_rule() -> None:
    graph = network()
    assert reads(graph, "head, back") == {"loss, to head", "sum"}
    assert reads(graph, "sum, back") == {"head, to sum"}
    assert reads(graph, "relu, back") == {"sum, back"}
    assert reads(graph, "a, back") == {"relu, to a", "sum, back", "x"}


def test_bytes_are_those_of_outputs_and_of_their_gradients_and_parameters_count_twice_once() -> None:
    graph = network()
    sizes = {tensor.name: tensor.size for tensor in graph.tensors}
    assert sizes == {"x": 16, "a": 8, "relu": 8, "sum": 8, "head": 4, "loss": 4, "loss, to head": 4} | {
        "head, to sum": 8,
        "head, done": 0,
        "sum, back": 8,
        "relu, to a": 8,
        "a, done": 0,
    }
    assert graph.fixed_size == 200
    assert {graph.tensors[t].name for t in graph.outputs} == {"loss", "head, done", "a, done"}
    assert keep_all_peak(graph) == 200 + 16 + 3 * 8  # at the sum


def test_backward_costs_twice_as_much_where_there_are_weights() -> None:
    costs = {op.name: op.cost for op in network().ops}
    assert costs["a, back"] == costs["head, back"] == 20
    assert costs["relu, back"] == costs["sum, back"] == costs["relu"] == 10
    assert costs["loss"] == 1  # four bytes

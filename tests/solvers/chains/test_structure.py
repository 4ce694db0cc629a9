"""Which graphs are chains, and why others are not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import DFGraph
from checkmate.generators import chain, densenet, random_layered, residual, transformer, unet
from checkmate.testing.strategies import graphs
from checkmate_solvers.chains import Chain, recognise

from .strategies import training_chains


def _chain_of(graph: DFGraph) -> Chain:
    found = recognise(graph)
    assert isinstance(found, Chain), found
    return found


def _check(found: Chain) -> None:
    """The definition, word by word."""
    graph, p = found.graph, found.length
    made = [set(graph.inputs), *(set(graph.ops[v].outputs) for v in found.forward)]
    assert len(found.blocks) == len(found.states) == p + 1
    for layer, v in enumerate(found.forward, start=1):
        assert graph.ops[v].recomputable
        assert set(graph.ops[v].inputs) <= set(found.states[layer - 1]) | made[0]
        assert set(found.states[layer]) <= made[layer]
    done: set[int] = set()
    for q in range(p + 1, 0, -1):
        own = made[q] if q <= p else set()
        for v in found.blocks[q - 1]:
            assert set(graph.ops[v].inputs) <= set(found.states[q - 1]) | own | done | made[0]
            done |= set(graph.ops[v].outputs)


def test_the_textbook_chain() -> None:
    found = _chain_of(chain(4))
    assert found.forward == (0, 1, 2, 3)
    assert found.blocks == ((), (8,), (7,), (6,), (4, 5))
    assert found.states == ((), (0,), (1,), (2,), (3,))


@pytest.mark.parametrize("graph", [residual(0), unet(0), densenet(0), transformer(0)], ids=repr)
def test_nets_without_branches_are_chains(graph: DFGraph) -> None:
    _check(_chain_of(graph))


@pytest.mark.parametrize(
    "graph",
    [residual(2), unet(2), densenet(2), transformer(2), random_layered(30, training=True)],
    ids=repr,
)
def test_nets_with_branches_are_none(graph: DFGraph) -> None:
    assert isinstance(recognise(graph), str)


@given(st.one_of(training_chains(), graphs(max_ops=12)))
def test_every_graph_that_is_read_as_a_chain_is_one(graph: DFGraph) -> None:
    found = recognise(graph)
    if isinstance(found, Chain):
        _check(found)
        listed = [*found.forward, *(v for block in reversed(found.blocks) for v in block)]
        assert listed == sorted(set(listed))
    else:
        assert found


@given(training_chains())
def test_flags_and_names_say_nothing(graph: DFGraph) -> None:
    ops = tuple(replace(op, name="loss", backward=not op.backward) for op in graph.ops)
    plain, changed = recognise(graph), recognise(replace(graph, ops=ops))
    assert isinstance(plain, Chain) == isinstance(changed, Chain)
    if isinstance(plain, Chain) and isinstance(changed, Chain):
        assert (plain.forward, plain.blocks, plain.states) == (
            changed.forward,
            changed.blocks,
            changed.states,
        )


def test_a_skip_edge_is_named() -> None:
    deps = [[], [0], [1], [2], [3], [4, 3], [5, 1], [6, 3], [7, 0]]
    found = recognise(DFGraph.from_nodes(cost=[1] * 9, size=[1] * 9, deps=deps))
    assert found == (
        "op 7 '7' reads tensor 3 '3', which belongs to layer 4, where the backward pass is at layer 3"
    )


def test_where_nothing_is_read_twice_there_is_nothing_to_decide() -> None:
    found = recognise(DFGraph.from_nodes(cost=[1] * 3, size=[1] * 3, deps=[[], [0], [1]]))
    assert found == "no op in a row from the start is read by anything but the op after it"
    assert isinstance(recognise(DFGraph(ops=(), tensors=())), str)


def test_ops_that_run_once_end_the_row() -> None:
    graph = chain(4)
    ops = list(graph.ops)
    ops[1] = replace(ops[1], recomputable=False)
    assert isinstance(recognise(replace(graph, ops=tuple(ops))), str)

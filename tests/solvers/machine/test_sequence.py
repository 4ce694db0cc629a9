"""Single edits against a plain pass over all ops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import DFGraph
from checkmate.analysis import liveness
from checkmate.testing.strategies import graphs, training_steps, valid_schedules
from checkmate_solvers.machine.arrays import ANY_BUDGET, BLOCKS, COST, LOGGED, SHIFT, State, state_of
from checkmate_solvers.machine.library import search

GRAPHS = st.one_of(graphs(min_ops=2, recomputable=True), training_steps())


def _nodes(state: State) -> list[int]:
    """In order; the last is the end."""
    places = [(b << SHIFT) + i for b in range(state.counts[BLOCKS]) for i in range(state.filled[b])]
    return [int(node) for node in state.at[places]]


def _can_go(single, state: State, node: int) -> bool:
    """Whether a node is not the end, and its readers have an earlier copy or do not exist."""
    v = state.op[node]
    return v < len(state.head) - 1 and (state.prev[node] >= 0 or single.idle(state, node))


def _edit(data, single, state: State) -> None:
    """One random edit that leaves a valid sequence."""
    nodes = _nodes(state)
    kind = data.draw(st.sampled_from(["insert", "insert", "remove", "discard", "lay out"]))
    if kind == "insert":
        y = data.draw(st.sampled_from(nodes))
        here = state.pos[y]
        there = [
            v
            for v in range(len(state.head) - 1)
            if all(
                single.latest(state, state.producer[t], here) >= 0
                for t in state.reads[state.reads_at[v] : state.reads_at[v + 1]]
            )
        ]
        if there:
            single.insert_node(state, data.draw(st.sampled_from(there)), y)
    elif kind == "lay out":
        single.lay_out(state)
    elif gone := [x for x in nodes if _can_go(single, state, x)]:
        (single.remove_node if kind == "remove" else single.discard)(state, data.draw(st.sampled_from(gone)))


@given(data=st.data(), graph=GRAPHS)
def test_after_any_edits_all_numbers_are_those_of_a_fresh_pass(data, single, seen, graph: DFGraph) -> None:
    state = state_of(graph, fixed_order=False, seed=0)
    search(state, data.draw(valid_schedules(graph)).sequence, ANY_BUDGET)
    for _ in range(data.draw(st.integers(1, 12))):
        _edit(data, single, state)
        ops, memory = seen(state)
        expected = (liveness(graph, ops).memory - graph.base_size).tolist()
        assert memory == expected
        assert state.totals[COST] == pytest.approx(graph.costs[ops].sum())
        at = state.pos[_nodes(state)]
        low, high = sorted((data.draw(st.integers(0, len(at) - 1)), data.draw(st.integers(0, len(at) - 1))))
        if high < len(ops):
            most = max(expected[low : high + 1])
            assert single.exceeds(state, at[low], at[high], most - 1)
            assert not single.exceeds(state, at[low], at[high], most)
        assert single.peak(state) >= max(memory, default=0)
        for block in np.flatnonzero(state.filled[: state.counts[BLOCKS]]).tolist():
            inside = slice(block << SHIFT, (block << SHIFT) + state.filled[block])
            assert state.most[block] == state.mem[inside].max() + state.add[block]


@given(data=st.data(), graph=GRAPHS)
def test_undo_brings_back_the_very_same_nodes(data, single, seen, graph: DFGraph) -> None:
    state = state_of(graph, fixed_order=False, seed=0)
    search(state, data.draw(valid_schedules(graph)).sequence, ANY_BUDGET)
    before, nodes = seen(state), _nodes(state)
    deaths = {node: state.death[node].tolist() for node in nodes}
    for _ in range(data.draw(st.integers(1, 12))):
        _edit(data, single, state)
    single.undo(state, 0)
    assert (seen(state), _nodes(state), state.counts[LOGGED]) == (before, nodes, 0)
    width = {node: state.makes_at[state.op[node] + 1] - state.makes_at[state.op[node]] for node in nodes}
    assert {node: state.death[node].tolist()[: width[node]] for node in nodes} == {
        node: row[: width[node]] for node, row in deaths.items()
    }


def test_sequences_longer_than_a_block(single) -> None:
    """A chain of 300 ops fills several blocks; bytes of a copy that lives throughout are in each."""
    n = 300
    graph = DFGraph.from_nodes(
        cost=[1] * n, size=[7] + [1] * (n - 1), deps=[[], *([i] for i in range(n - 2)), [n - 2, 0]]
    )
    state = state_of(graph, fixed_order=False, seed=0)
    search(state, np.arange(n), ANY_BUDGET)
    assert single.peak(state) == 9
    middle = _nodes(state)[150]
    for _ in range(100):
        single.insert_node(state, 0, middle)
    ops = state.op[_nodes(state)][:-1]
    memory = [state.mem[p] + state.add[p >> SHIFT] for p in state.pos[_nodes(state)][:-1]]
    assert memory == liveness(graph, ops.tolist()).memory.tolist()

"""Liveness: its memory agrees with the judge, and is never below the floor."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import DFGraph, GraphError, Op, Schedule, Tensor, floor, keep_all_peak, simulate
from checkmate.analysis import liveness, needed_ops
from checkmate.testing.strategies import graphs, valid_schedules


@given(data=st.data())
def test_memory_agrees_with_the_judge(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    schedule = Schedule.from_sequence(graph, data.draw(valid_schedules(graph)).sequence.tolist())
    judged, live = simulate(graph, schedule), liveness(graph, schedule.sequence.tolist())
    assert live.memory.tolist() == judged.memory[schedule.codes >= 0].tolist()
    assert live.peak == judged.peak


@given(graph=graphs())
def test_each_tensor_lives_from_its_run_to_its_last_reader(graph: DFGraph) -> None:
    live = liveness(graph)
    assert live.peak == keep_all_peak(graph)
    for t in range(graph.n_tensors):
        assert live.first[t] == graph.producer[t]
        kept = t in graph.inputs or t in graph.outputs
        assert live.last[t] == (graph.n_ops if kept else max([live.first[t], *graph.readers.row(t)]))


@given(graph=graphs(recomputable=True))
def test_the_needed_ops_alone_are_between_the_floor_and_all(graph: DFGraph) -> None:
    needed = np.flatnonzero(needed_ops(graph)).tolist()
    assert floor(graph).size <= liveness(graph, needed).peak <= keep_all_peak(graph)


def test_unneeded_ops_count_in_no_floor() -> None:
    graph = DFGraph.from_nodes(cost=[1, 1, 1], size=[4, 90, 2], deps=[[], [0], [0]], outputs=[2])
    assert floor(graph) == (6, 2)
    assert keep_all_peak(graph) == 94


def test_a_copy_made_again_is_counted_while_it_is_needed() -> None:
    chain = DFGraph.from_nodes(cost=[1] * 3, size=[4, 2, 1], deps=[[], [0], [0, 1]])
    live = liveness(chain, [0, 1, 0, 2])
    assert live.memory.tolist() == [4, 6, 6, 7]
    assert live.first.tolist() == [0, 1, 3]
    assert live.last.tolist() == [3, 3, 4]
    assert repr(live) == "<Liveness: 4 runs, peak 7 bytes>"
    assert not any(array.flags.writeable for array in (live.first, live.last, live.memory))


def test_an_order_that_cannot_run_is_refused() -> None:
    chain = DFGraph.from_nodes(cost=[1, 1], size=[4, 4], deps=[[], [0]], names=["a", "b"])
    with pytest.raises(GraphError, match=r"run 0 of the order, op 1 'b', reads tensor 0 'a', which no"):
        liveness(chain, [1, 0])
    with pytest.raises(GraphError, match=r"run 1 of the order is of op 2, but there are 2 ops"):
        liveness(chain, [0, 2])


def test_an_empty_graph_holds_its_base_size() -> None:
    tensors = (Tensor(name="batch", size=3),)
    graph = DFGraph(ops=(), tensors=tensors, inputs=(0,), outputs=(0,), fixed_size=4)
    assert liveness(graph).peak == 7
    assert floor(graph) == (7, None)
    unmade = DFGraph(
        ops=(Op(name="f", inputs=(), outputs=(1,), cost=1),), tensors=(*tensors, *tensors), inputs=(0,)
    )
    assert liveness(unmade, []).first.tolist() == [-1, 0]

"""A lean order is a valid order of the ops."""

from __future__ import annotations

from hypothesis import given

from checkmate import DFGraph
from checkmate.testing.strategies import graphs
from checkmate_tf.running.lean_order import lean_order


@given(graphs())
def test_every_op_comes_once_and_after_its_producers(graph: DFGraph) -> None:
    order = lean_order(graph)
    place = {v: k for k, v in enumerate(order)}
    assert sorted(order) == list(range(graph.n_ops))
    for v, op in enumerate(graph.ops):
        assert all(graph.producer[t] < 0 or place[int(graph.producer[t])] < place[v] for t in op.inputs)

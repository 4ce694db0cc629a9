"""Articulation points: against removing each op and counting components, and by hand on known shapes."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from checkmate import DFGraph, Op, Tensor
from checkmate.analysis import articulation_points
from checkmate.testing.strategies import graphs


def nodes(deps: list[list[int]], backward: list[bool] | None = None) -> DFGraph:
    """One op per row of ``deps``, unit costs and sizes."""
    return DFGraph.from_nodes(cost=[1] * len(deps), size=[1] * len(deps), deps=deps, backward=backward)


def components(ops: Iterable[int], edges: Iterable[tuple[int, int]]) -> int:
    """The number of connected components, by merging the two groups of every edge."""
    groups = {v: {v} for v in ops}
    for u, v in edges:
        if u in groups and v in groups and groups[u] is not groups[v]:
            groups[u] |= groups[v]
            for w in groups[v]:
                groups[w] = groups[u]
    return len({id(group) for group in groups.values()})


def by_removal(graph: DFGraph) -> tuple[int, ...]:
    """The definition: the forward ops without which there are more components."""
    forward = [v for v, op in enumerate(graph.ops) if not op.backward]
    edges = [(u, v) for u in forward for v in forward if {*graph.ops[u].outputs} & {*graph.ops[v].inputs}]
    whole = components(forward, edges)
    return tuple(v for v in forward if components({*forward} - {v}, edges) > whole)


@given(graphs(max_ops=12))
def test_they_are_the_ops_whose_removal_disconnects(graph: DFGraph) -> None:
    assert articulation_points(graph) == by_removal(graph)


@st.composite
def sparse(draw: st.DrawFn) -> DFGraph:
    """Ops that read one or two of the four ops before them: many bridges, blocks and skip edges."""
    n = draw(st.integers(1, 24))
    return nodes([sorted({max(0, v - draw(st.integers(1, 4))) for _ in "ab"}) if v else [] for v in range(n)])


@given(sparse())
@example(nodes([[], [0], [0], [1, 2], [3], [3, 4]]))
def test_they_are_so_on_long_sparse_graphs_with_skip_edges(graph: DFGraph) -> None:
    assert articulation_points(graph) == by_removal(graph)


@pytest.mark.parametrize(
    ("deps", "points"),
    [
        ([], ()),
        ([[]], ()),
        ([[], [0]], ()),
        ([[], [0], [1], [2]], (1, 2)),  # a chain: all but its ends
        ([[], [0], [1], [0, 2], [3]], (3,)),  # a block: its skip edge spares the ops inside
        ([[], [0], [0], [0]], (0,)),  # three readers of one op
        ([[], [], [0, 1]], (2,)),  # a root of the search that is no articulation point, and two side branches
        ([[], [0], [], [2]], ()),  # two components
        ([[], [0], [1], [0, 2], [3], [4], [3, 5]], (3,)),  # two blocks share op 3
    ],
)
def test_on_small_shapes_they_are_known(deps: list[list[int]], points: tuple[int, ...]) -> None:
    assert articulation_points(nodes(deps)) == points


def test_the_backward_pass_does_not_join_what_the_forward_pass_leaves_apart() -> None:
    deps = [[], [0], [1], [2], [3, 2], [4, 1], [5, 0]]
    assert articulation_points(nodes(deps, backward=[False] * 4 + [True] * 3)) == (1, 2)
    assert articulation_points(nodes(deps, backward=[True] * 7)) == ()


def test_a_shared_graph_input_adds_no_edge_and_an_op_counts_once() -> None:
    graph = DFGraph(
        ops=(
            Op(name="a", inputs=(0,), outputs=(1, 2), cost=1),
            Op(name="b", inputs=(0, 1, 2), outputs=(3,), cost=1),
            Op(name="c", inputs=(0, 3), outputs=(4,), cost=1),
        ),
        tensors=tuple(Tensor(name=str(t), size=1) for t in range(5)),
        inputs=(0,),
        outputs=(4,),
    )
    assert articulation_points(graph) == (1,)


@pytest.mark.slow
def test_a_hundred_thousand_ops_in_a_row_need_no_recursion() -> None:
    n = 100_000
    assert articulation_points(nodes([[v - 1] if v else [] for v in range(n)])) == tuple(range(1, n - 1))

"""Floors: no schedule needs less, and tensors that are forced to stay are counted."""

from __future__ import annotations

import dataclasses
import heapq

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from checkmate import DFGraph, Op, Tensor, floor
from checkmate.analysis import first_run_sets, needed_ops, working_sets
from checkmate.testing.strategies import graphs


def least_budget(graph: DFGraph) -> float:
    """The least peak of any schedule, by a search over all states (what ran, what is resident).

    Dijkstra's algorithm with "largest memory so far" as length; shares no code with what it tests.
    """
    sizes = [t.size for t in graph.tensors]

    def held(resident: frozenset[int]) -> int:
        return graph.fixed_size + sum(sizes[t] for t in resident)

    start = (frozenset[int](), frozenset(graph.inputs))
    best = {start: held(start[1])}
    heap = [(best[start], 0, start)]
    while heap:
        peak, _, (ran, resident) = heapq.heappop(heap)
        if resident >= set(graph.outputs):
            return peak
        following = [(peak, ran, resident - {t}) for t in resident - set(graph.inputs)]
        for v, op in enumerate(graph.ops):
            if resident >= set(op.inputs) and (op.recomputable or v not in ran):
                memory = held(resident) + sum(sizes[t] for t in op.outputs) + op.workspace
                following.append((max(peak, memory), ran | {v}, resident | set(op.outputs)))
        for length, *state in following:
            key = (state[0], state[1])
            if length < best.get(key, np.inf):
                best[key] = length
                heapq.heappush(heap, (length, len(best), key))
    return np.inf


@given(graph=graphs(max_ops=5))
def test_no_schedule_can_do_with_less_than_the_floor(graph: DFGraph) -> None:
    assert floor(graph).size <= least_budget(graph)


@given(data=st.data())
def test_nor_where_much_runs_only_once(data: st.DataObject) -> None:
    """Small dense graphs, whose floor often depends on forced tensors."""
    n = data.draw(st.integers(3, 7))
    deps = [
        data.draw(st.sets(st.integers(0, i - 1), min_size=1, max_size=2)) if i else set() for i in range(n)
    ]
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=n, max_size=n))
    graph = DFGraph.from_nodes(cost=[1] * n, size=sizes, deps=deps)
    once_only = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    ops = [
        dataclasses.replace(op, recomputable=not once) for op, once in zip(graph.ops, once_only, strict=True)
    ]
    graph = dataclasses.replace(graph, ops=tuple(ops))
    assert floor(graph).size <= least_budget(graph)


@given(graph=graphs())
def test_first_run_sets_hold_the_working_set_and_once_only_tensors_alone(graph: DFGraph) -> None:
    once_only = sum(graph.tensors[t].size for op in graph.ops if not op.recomputable for t in op.outputs)
    extra = first_run_sets(graph) - working_sets(graph)
    assert (extra >= 0).all()
    assert (extra <= once_only).all()


def test_outputs_of_once_only_ops_stay_until_their_last_reader() -> None:
    """Two masks of 5 bytes, drawn in forward, read in backward: both are resident when the loss runs."""

    def op(name: str, reads: tuple[int, ...], makes: int, recomputable: bool = True) -> Op:
        return Op(name=name, inputs=reads, outputs=(makes,), cost=1, recomputable=recomputable)

    graph = DFGraph(
        ops=(
            op("mask 1", (), 0, recomputable=False),
            op("layer 1", (0,), 1),
            op("mask 2", (1,), 2, recomputable=False),
            op("layer 2", (1, 2), 3),
            op("loss", (3,), 4),
            op("layer 2 backward", (2, 4), 5),
            op("layer 1 backward", (0, 5), 6),
        ),
        tensors=tuple(Tensor(name=str(t), size=5 if t in (0, 2) else 1) for t in range(7)),
        outputs=(6,),
    )
    assert working_sets(graph).tolist() == [5, 6, 6, 7, 2, 7, 7]
    assert first_run_sets(graph).tolist() == [5, 6, 11, 12, 12, 12, 7]
    assert floor(graph) == (12, 3)
    assert least_budget(graph) == 12


def test_a_once_only_tensor_that_no_needed_op_reads_may_go() -> None:
    ops = (
        Op(name="drawn", inputs=(), outputs=(0,), cost=1, recomputable=False),
        Op(name="first", inputs=(0,), outputs=(1,), cost=1),
        Op(name="second", inputs=(1,), outputs=(2,), cost=1),
        Op(name="for nobody", inputs=(0, 2), outputs=(3,), cost=1),
    )
    sizes = (8, 1, 1, 1)
    tensors = tuple(Tensor(name=str(t), size=size) for t, size in enumerate(sizes))
    graph = DFGraph(ops=ops, tensors=tensors, outputs=(2,))
    assert floor(graph) == (9, 1)
    assert first_run_sets(graph)[2] == 2
    assert floor(DFGraph(ops=ops, tensors=tensors, outputs=(0, 2))) == (10, 2)
    assert floor(DFGraph(ops=ops, tensors=tensors, outputs=(3,))) == (10, 2)


def test_the_floor_of_the_empty_graph_is_its_base_size() -> None:
    batch = Tensor(name="batch", size=3)
    assert floor(DFGraph(ops=(), tensors=())) == (0, None)
    assert floor(DFGraph(ops=(), tensors=(batch,), inputs=(0,), outputs=(0,), fixed_size=4)) == (7, None)


@given(graph=graphs())
def test_needed_ops_are_the_ancestors_of_the_outputs(graph: DFGraph) -> None:
    def ancestors(tensors: tuple[int, ...]) -> set[int]:
        makers = {int(graph.producer[t]) for t in tensors} - {-1}
        return makers.union(*(ancestors(graph.ops[v].inputs) for v in makers))

    assert set(np.flatnonzero(needed_ops(graph))) == ancestors(graph.outputs)


@given(graph=graphs())
def test_working_sets_are_touched_tensors_that_are_not_reused_and_the_base_size(graph: DFGraph) -> None:
    for node, size in zip(graph.ops, working_sets(graph).tolist(), strict=True):
        movable = {*node.inputs, *node.outputs} - {*graph.inputs, *node.reuses}
        assert size == graph.base_size + sum(graph.tensors[t].size for t in movable) + node.workspace


def test_working_sets_are_exact_though_all_reads_together_overflow() -> None:
    large = DFGraph.from_nodes(cost=[1] * 20, size=[2**61] + [1] * 19, deps=[[], *[[0]] * 19])
    assert working_sets(large).tolist() == [2**61] + [2**61 + 1] * 19


def test_the_floor_names_its_bottleneck() -> None:
    graph = DFGraph.from_nodes(cost=[1, 1, 1], size=[4, 9, 2], deps=[[], [0], [1]], fixed_size=10)
    assert working_sets(graph).tolist() == [14, 23, 21]
    assert floor(graph) == (23, 1)
    outputs_only = DFGraph.from_nodes(cost=[1, 1, 1], size=[4, 4, 4], deps=[[], [], []])
    assert floor(outputs_only) == (12, None)


def test_of_very_many_once_only_tensors_the_largest_count() -> None:
    """Each of 1100 ops makes two bytes, the first one (not tracked); the last op reads them all."""
    n = 1100
    row = DFGraph.from_nodes(
        cost=[1] * (n + 1), size=[1] + [2] * n, deps=[[i - 1] if i else [] for i in range(n)] + [range(n)]
    )
    ops = tuple(dataclasses.replace(op, recomputable=False) for op in row.ops)
    sets = first_run_sets(dataclasses.replace(row, ops=ops))
    assert sets[1000] == 4 + 2 * 998
    assert sets[1099] == 4 + 2 * 1024


@given(graphs())
def test_the_bottleneck_is_an_op_that_must_run(graph: DFGraph) -> None:
    bottleneck = floor(graph).bottleneck
    assert bottleneck is None or needed_ops(graph)[bottleneck]


def test_where_no_op_must_run_none_is_the_bottleneck() -> None:
    graph = DFGraph.from_nodes(cost=[1], size=[4], deps=[[]], outputs=[])
    assert floor(graph) == (0, None)

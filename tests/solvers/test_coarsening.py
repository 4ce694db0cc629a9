"""Groups of ops as one op each: the same cost, no higher peak, and the search of a large graph uses them."""

from __future__ import annotations

from dataclasses import replace

import numba
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import DFGraph, Op, Problem, Schedule, Tensor, floor, keep_all_peak, simulate
from checkmate.analysis import needed_ops
from checkmate.generators import transformer
from checkmate.heuristics import BestHeuristic
from checkmate.testing.strategies import branches, dressed, graphs, training_steps
from checkmate_solvers.coarsening import coarsened
from checkmate_solvers.local_search import LocalSearch

GRAPHS = st.one_of(graphs(max_ops=12), dressed(st.one_of(training_steps(max_layers=5), branches())))
compiled = pytest.mark.skipif(bool(vars(numba.config)["DISABLE_JIT"]), reason="too slow without machine code")


@given(graph=GRAPHS, few=st.integers(0, 10))
def test_each_needed_op_is_in_one_group(graph: DFGraph, few: int) -> None:
    coarse = coarsened(graph, few)
    grouped = sorted(v for group in coarse.groups for v in group)
    assert grouped == [v for v in range(graph.n_ops) if needed_ops(graph)[v]]
    assert len(coarse.groups) == coarse.graph.n_ops
    assert coarse.graph.base_size == graph.base_size


@given(graph=GRAPHS, few=st.integers(0, 10), share=st.floats(0, 1))
def test_groups_written_out_cost_the_same_and_take_no_more_bytes(
    graph: DFGraph, few: int, share: float
) -> None:
    coarse = coarsened(graph, few)
    least, most = floor(coarse.graph).size, keep_all_peak(coarse.graph)
    budget = max(int(least + share * (most - least)), 1)
    found = BestHeuristic().solve(Problem(graph=coarse.graph, budget=budget))
    if found.schedule is not None:
        ops = coarse.expanded(found.schedule.sequence.tolist())
        timeline = simulate(graph, Schedule.from_sequence(graph, ops))
        assert timeline.cost == pytest.approx(found.cost)
        assert timeline.peak <= (found.peak or 0)


def test_a_group_counts_what_its_ops_hold_inside() -> None:
    """Ops 1 to 4 make 2, 2, 2 and 1 bytes in a row, and the last also reads the 4 bytes of op 0."""
    graph = DFGraph.from_nodes(cost=[1, 2, 3, 4, 5], size=[4, 2, 2, 2, 1], deps=[[], [0], [1], [2], [0, 3]])
    coarse = coarsened(graph, 2)
    assert coarse.groups == [[0, 1, 2, 3, 4]]
    assert coarse.graph.ops[0].cost == 15
    assert keep_all_peak(coarse.graph) == keep_all_peak(graph) == 8


def test_an_op_that_runs_once_is_in_no_group_of_ops_that_may_run_again() -> None:
    ops = (
        Op(name="dropout", inputs=(), outputs=(0,), cost=1, recomputable=False),
        Op(name="relu", inputs=(0,), outputs=(1,), cost=1),
        Op(name="loss", inputs=(1,), outputs=(2,), cost=1),
    )
    tensors = tuple(Tensor(name=name, size=1) for name in "abc")
    assert coarsened(DFGraph(ops=ops, tensors=tensors, outputs=(2,)), 5).groups == [[0], [1, 2]]


def test_long_groups_end() -> None:
    """Looking at a group takes time in proportion to its length."""
    n = 200
    graph = DFGraph.from_nodes(cost=[1] * n, size=[1] * n, deps=[[], *([v] for v in range(n - 1))])
    assert max(map(len, coarsened(graph, 5).groups)) == 64


def halved(graph: DFGraph) -> DFGraph:
    """Each op as two, of which the second writes over what the first made."""
    ops, tensors = [], list(graph.tensors)
    for op in graph.ops:
        size = sum(graph.tensors[t].size for t in op.outputs)
        middle = (len(tensors),)
        tensors.append(Tensor(name=f"{op.name}, first half", size=size))
        ops.append(replace(op, outputs=middle, cost=op.cost / 2))
        ops.append(replace(op, inputs=middle, cost=op.cost / 2, reuses=middle))
    return replace(graph, ops=tuple(ops), tensors=tuple(tensors))


@compiled
@pytest.mark.parametrize("fixed_order", [False, True])
def test_the_local_search_uses_groups_if_runs_may_move(fixed_order: bool) -> None:
    graph, steps = halved(transformer(6)), set[str]()
    problem = Problem(
        graph=graph,
        budget=int(0.7 * floor(graph).size + 0.3 * keep_all_peak(graph)),
        fixed_order=fixed_order,
        time_limit=5,
        on_progress=lambda progress: steps.add(progress.step),
    )
    assert LocalSearch(rounds=200, patience=4).solve(problem).schedule is not None
    assert ("coarse local search" in steps) == (not fixed_order)

"""Laws of pruning: it only removes, keeps the sequence valid and within the budget, and never costs more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from checkmate.analysis import needed_ops
from checkmate.heuristics.prune import pruned
from checkmate.model.graph import DFGraph
from checkmate.model.schedule import Schedule
from checkmate.problem.deadline import Deadline
from checkmate.simulate import simulate
from checkmate.testing.strategies import graphs, valid_schedules


@given(st.data(), graphs(), st.booleans(), st.integers(0, 6))
def test_a_pruned_sequence_is_a_valid_part_within_the_budget(
    data: st.DataObject, graph: DFGraph, fixed_order: bool, slack: int
) -> None:
    sequence = data.draw(valid_schedules(graph)).sequence.tolist()
    before = simulate(graph, Schedule.from_sequence(graph, sequence))
    budget = before.peak + slack
    kept = pruned(graph, sequence, budget, fixed_order=fixed_order)
    after = simulate(graph, Schedule.from_sequence(graph, kept))
    assert after.peak <= budget
    assert after.cost <= before.cost
    rest = iter(sequence)
    assert all(v in rest for v in kept), "a pruned sequence keeps its order"
    needed = needed_ops(graph)
    assert {v for v in range(graph.n_ops) if needed[v]} == set(kept)
    if fixed_order:
        first_runs = [v for v in dict.fromkeys(sequence) if needed[v]]
        assert list(dict.fromkeys(kept)) == first_runs


@given(st.data(), graphs(recomputable=True))
def test_with_room_for_everything_nothing_runs_twice(data: st.DataObject, graph: DFGraph) -> None:
    sequence = data.draw(valid_schedules(graph)).sequence.tolist()
    kept = pruned(graph, sequence, 10**9, fixed_order=False)
    assert len(set(kept)) == len(kept)


def test_the_most_expensive_recomputation_is_removed_first() -> None:
    """Two recomputations, room to keep one tensor: the one that costs 9 is kept."""
    graph = DFGraph.from_nodes(
        cost=[9, 1, 1, 1], size=[1, 1, 2, 1], deps=[[], [], [0, 1], [0, 1, 2]], outputs=[3]
    )
    lazy = [0, 1, 2, 0, 1, 3]
    assert pruned(graph, lazy, 100, fixed_order=True) == [0, 1, 2, 3]
    wide = DFGraph.from_nodes(
        cost=[9, 1, 1, 1, 1], size=[1, 1, 1, 3, 0], deps=[[], [], [0, 1], [2], [0, 1, 3]], outputs=[4]
    )
    assert pruned(wide, [0, 1, 2, 3, 0, 1, 4], 5, fixed_order=True) == [0, 1, 2, 3, 1, 4]


def test_an_unread_first_run_moves_only_if_the_order_is_free() -> None:
    graph = DFGraph.from_nodes(cost=[5, 1, 1], size=[1, 1, 1], deps=[[], [], [0, 1]])
    assert pruned(graph, [0, 1, 0, 2], 2 + 1, fixed_order=False) == [1, 0, 2]
    assert pruned(graph, [0, 1, 0, 2], 2 + 1, fixed_order=True) == [0, 1, 2]


def test_after_the_deadline_only_unread_computes_are_removed() -> None:
    graph = DFGraph.from_nodes(cost=[1] * 3, size=[1] * 3, deps=[[], [0], [0, 1]])
    assert pruned(graph, [0, 0, 1, 0, 2], 9, fixed_order=False, deadline=Deadline(0)) == [0, 1, 0, 2]

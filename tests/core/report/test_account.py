"""Whose bytes are whose: every byte of a peak once, and which of them no schedule can free."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import DFGraph, InfeasibleBudgetError, Timeline, keep_all_peak, solve
from checkmate.report import Account, Kind

from .judged import by_hand, timelines

TENSORS = [kind for kind in Kind if kind is not Kind.WORKSPACE]


@given(timelines(), st.data())
def test_every_byte_of_a_peak_is_of_one_kind(timeline: Timeline, data: st.DataObject) -> None:
    graph = timeline.graph
    kinds = tuple(data.draw(st.sampled_from(TENSORS)) for _ in graph.tensors)
    sizes = Account(kinds=kinds, fixed={Kind.RESERVE: graph.fixed_size}).at_peak(timeline)
    assert sum(sizes.values()) == timeline.peak
    assert all(sizes.values())
    assert list(sizes.values()) == sorted(sizes.values(), reverse=True)


def by_hand_account() -> Account:
    """Of the timeline that is known by hand; D, which it returns, is a gradient of a parameter."""
    kinds = (Kind.BATCH, Kind.ACTIVATIONS, Kind.ACTIVATIONS, Kind.ACTIVATION_GRADIENTS, Kind.GRADIENTS)
    return Account(kinds=kinds, fixed={Kind.PARAMETERS: 7, Kind.OPTIMIZER: 3})


def test_a_peak_by_hand() -> None:
    """It is where c runs: x, B and C are there, A is away."""
    timeline, account = by_hand(), by_hand_account()
    assert timeline.graph.ops[timeline.peak_op or 0].name == "c"
    assert account.at_peak(timeline) == {
        Kind.WORKSPACE: 20,
        Kind.PARAMETERS: 7,
        Kind.BATCH: 5,
        Kind.ACTIVATIONS: 4,
        Kind.OPTIMIZER: 3,
        Kind.ACTIVATION_GRADIENTS: 2,
    }


def test_what_no_schedule_can_free_is_told_where_it_is_over_the_budget() -> None:
    graph, account = by_hand().graph, by_hand_account()
    held = account.without_activations(graph)
    assert held == {Kind.PARAMETERS: 7, Kind.BATCH: 5, Kind.OPTIMIZER: 3, Kind.GRADIENTS: 1}
    assert account.explained(refused(graph, 16), graph).reason == refused(graph, 16).reason
    refusal = account.explained(refused(graph, 15), graph)
    parts = "parameters 7 B, batch 5 B, optimizer state 3 B, gradients of parameters 1 B"
    assert refusal.reason == f"16 B are held before any activation: {parts}"
    assert (refusal.budget, refusal.floor, refusal.proved) == (15, refused(graph, 15).floor, True)


def refused(graph: DFGraph, budget: int) -> InfeasibleBudgetError:
    assert keep_all_peak(graph) > budget
    with pytest.raises(InfeasibleBudgetError) as caught:
        solve(graph, budget, solver="heuristics")
    return caught.value

"""The state of a solve: what is judged and cheaper is kept, bounds only rise, interrupts lose nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import DFGraph, Problem, Progress, Schedule, Status, generators, keep_all_peak, simulate
from checkmate.testing.strategies import graphs
from checkmate_solvers.search.incumbent import Search

CHAIN = generators.chain(4)  # nine ops of cost and size 1; the loss is op 4
AGAIN = [0, 1, 2, 3, 4, 5, 6, 0, 1, 7, 8]  # forgets 0 and 1
TIGHT = Problem(graph=CHAIN, budget=keep_all_peak(CHAIN) - 1)


def test_what_does_not_fit_is_not_kept() -> None:
    search = Search(TIGHT)
    assert not search.offer(range(9), "keep-all")
    search.judge(list(range(9)), "keep-all")
    assert (search.sequence, search.cost, search.seeds) == (None, math.inf, [])
    assert search.solution().status is Status.UNKNOWN


def test_another_order_is_kept_only_where_it_is_free() -> None:
    graph = DFGraph.from_nodes(cost=[1, 1, 1], size=[1, 1, 1], deps=[[], [], [0, 1]])
    for fixed_order, cost in ((False, 3), (True, math.inf)):
        search = Search(Problem(graph=graph, budget=9, fixed_order=fixed_order))
        search.judge([1, 0, 2], "swapped")
        assert search.cost == cost


def test_what_can_go_is_taken_away() -> None:
    search = Search(TIGHT)
    assert search.offer([0, 1, 2, 3, 0, 1, 4, 5, 6, 0, 1, 7, 8], "clumsy")
    assert search.sequence is not None
    assert simulate(CHAIN, Schedule.from_sequence(CHAIN, search.sequence)).cost == search.cost < 13


def test_the_cheapest_stays_and_every_origin_leaves_a_seed() -> None:
    search = Search(Problem(graph=CHAIN, budget=keep_all_peak(CHAIN)))
    search.judge(AGAIN, "dear")
    search.judge(list(range(9)), "cheap")
    search.judge(AGAIN, "dear too")
    assert search.cost == 9
    assert search.seeds == [list(range(9)), AGAIN, AGAIN]
    assert search.solution().origin["schedule"] == "cheap"


@given(bounds=st.lists(st.sampled_from([0.0, 0.25, 1.0, 1.5, 2.0]), max_size=5))
def test_bounds_rise_to_the_next_cost_that_is_possible(bounds: list[float]) -> None:
    told: list[Progress] = []
    search = Search(Problem(graph=CHAIN, budget=3, on_progress=told.append))
    for bound in bounds:
        search.prove(bound, "test")
    assert search.bound == 9 + math.ceil(max(bounds, default=0))
    assert [p.bound for p in told] == sorted({p.bound for p in told})


def test_infeasible_only_when_proved() -> None:
    search = Search(TIGHT)
    search.prove(math.inf, "test")
    assert search.done
    assert search.solution().status is Status.INFEASIBLE


@given(graph=graphs())
def test_the_two_easy_ends(graph: DFGraph) -> None:
    roomy = Search(Problem(graph=graph, budget=max(1, keep_all_peak(graph))))
    assert roomy.start()
    assert roomy.solution().status is Status.OPTIMAL


def test_an_interrupt_is_only_noted_if_there_is_a_schedule() -> None:
    nothing, something = Search(TIGHT), Search(TIGHT)
    with pytest.raises(KeyboardInterrupt), nothing.interruptible():
        raise KeyboardInterrupt
    with something.interruptible():
        something.judge(AGAIN, "test")
        raise KeyboardInterrupt
    assert something.solution().interrupted
    assert something.solution().cost == 11


def test_a_share_of_the_time_ends_and_the_rest_comes_back() -> None:
    search = Search(TIGHT)
    before = search.deadline
    with search.within(0.5):
        assert search.left_s <= 0.5 * TIGHT.time_limit
    assert search.deadline is before


def test_what_was_found_without_machine_code_may_soon_be_better(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = generators.residual(8)
    problem = Problem(graph=graph, budget=keep_all_peak(graph) // 2)
    monkeypatch.setattr("checkmate_solvers.search.incumbent.at_hand", lambda _: None)
    search = Search(problem)
    search.decode({}, "eviction")
    assert search.solution().schedule is not None
    assert search.solution().provisional


def test_the_schedule_of_least_peak_that_did_not_fit_is_told() -> None:
    search = Search(replace(TIGHT, budget=3))
    for sequence in (list(range(9)), AGAIN):
        search.judge(sequence, "test")
    lowest = search.solution().lowest
    assert lowest is not None
    assert lowest.sequence.tolist() == AGAIN


def test_a_step_that_can_not_end_in_time_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a graph of which judging one schedule takes as long as the limit allows."""
    monkeypatch.setattr("checkmate_solvers.search.incumbent.judging_s", lambda _: TIGHT.time_limit)
    search = Search(TIGHT)
    assert not search.has_time_to_judge(1)
    search.decode({}, "eviction")
    assert search.sequence is None
    clumsy = [0, 1, 2, 3, 0, 1, 4, 5, 6, 0, 1, 7, 8]
    assert search.offer(clumsy, "clumsy")
    assert search.sequence == clumsy

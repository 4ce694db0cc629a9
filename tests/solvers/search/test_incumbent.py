"""The incumbent: only cheaper schedules are kept, bounds only rise, and interrupts lose nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import DFGraph, Problem, Progress, Schedule, Status, generators, keep_all_peak, simulate
from checkmate_solvers.search import Incumbent

CHAIN = generators.chain(4)  # nine ops of cost and size 1; the loss is op 4
ONCE = list(range(9))
AGAIN = [0, 1, 2, 3, 4, 5, 6, 0, 1, 7, 8]  # forgets 0 and 1
TIGHT = Problem(graph=CHAIN, budget=keep_all_peak(CHAIN) - 1)


def test_a_schedule_over_the_budget_is_not_kept() -> None:
    best = Incumbent(TIGHT)
    best.keep_if_better(ONCE, "keep-all")
    assert (best.sequence, best.cost, best.seeds) == (None, math.inf, [])
    assert best.solution().status is Status.UNKNOWN


def test_another_order_is_kept_only_where_it_is_free() -> None:
    graph = DFGraph.from_nodes(cost=[1, 1, 1], size=[1, 1, 1], deps=[[], [], [0, 1]])
    for fixed_order, cost in ((False, 3), (True, math.inf)):
        best = Incumbent(Problem(graph=graph, budget=9, fixed_order=fixed_order))
        best.keep_if_better([1, 0, 2], "swapped")
        assert best.cost == cost


def test_the_cheapest_stays_and_every_origin_leaves_a_seed() -> None:
    best = Incumbent(Problem(graph=CHAIN, budget=keep_all_peak(CHAIN)))
    best.keep_if_better(AGAIN, "expensive")
    best.keep_if_better(simulate(CHAIN, Schedule.from_sequence(CHAIN, ONCE)), "cheap")
    best.keep_if_better(AGAIN, "expensive, too")
    best.keep_if_better(AGAIN, "no seed", seed=False)
    assert best.cost == 9
    assert [sequence for _, _, sequence in best.seeds] == [ONCE, AGAIN, AGAIN]
    assert best.solution().origin["schedule"] == best.found_by == "cheap"


@given(bounds=st.lists(st.sampled_from([0.0, 0.25, 1.0, 1.5, 2.0]), max_size=5))
def test_bounds_rise_to_the_next_possible_cost(bounds: list[float]) -> None:
    reports: list[Progress] = []
    best = Incumbent(Problem(graph=CHAIN, budget=3, on_progress=reports.append))
    for bound in bounds:
        best.raise_recompute_bound(bound, "test")
    assert best.bound == 9 + math.ceil(max(bounds, default=0))
    assert [p.bound for p in reports] == sorted({p.bound for p in reports})


def test_infeasible_only_when_proved() -> None:
    best = Incumbent(TIGHT)
    best.raise_recompute_bound(math.inf, "test")
    assert best.done
    assert best.solution().status is Status.INFEASIBLE


def test_an_interrupt_is_only_noted_if_there_is_a_schedule() -> None:
    nothing, something = Incumbent(TIGHT), Incumbent(TIGHT)
    with pytest.raises(KeyboardInterrupt), nothing.interruptible():
        raise KeyboardInterrupt
    with something.interruptible():
        something.keep_if_better(AGAIN, "test")
        raise KeyboardInterrupt
    assert something.solution().interrupted
    assert something.solution().cost == 11


def test_an_answer_without_a_schedule_has_the_one_of_least_peak() -> None:
    best = Incumbent(replace(TIGHT, budget=3))
    for sequence in (ONCE, AGAIN):
        best.keep_if_better(sequence, "test")
    lowest = best.solution().lowest
    assert lowest is not None
    assert lowest.sequence.tolist() == AGAIN


def test_news_from_elsewhere_is_taken_over_at_each_look() -> None:
    best = Incumbent(TIGHT)
    best.poll = lambda: best.raise_bound(math.inf, "elsewhere")
    assert best.done

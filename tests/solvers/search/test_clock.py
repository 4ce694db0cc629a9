"""The clock: shares of the time end and are given back; steps that can't finish are refused."""

from __future__ import annotations

from checkmate import Problem, generators
from checkmate_solvers.search import Incumbent
from checkmate_solvers.search.clock import Clock

CHAIN = generators.chain(4)
PROBLEM = Problem(graph=CHAIN, budget=9)


def test_a_share_of_the_time_ends_and_the_rest_comes_back() -> None:
    clock = Clock(PROBLEM)
    before = clock.deadline
    with clock.within(0.5):
        assert clock.left_s <= 0.5 * PROBLEM.time_limit
    assert clock.deadline is before


def test_the_patient_deadline_counts_until_there_is_a_schedule() -> None:
    best = Incumbent(PROBLEM)
    assert best.clock.current is best.clock.patient
    best.keep_if_better(range(9), "keep-all")
    assert best.clock.current is best.clock.deadline


def test_a_step_needs_time_in_proportion_to_its_work() -> None:
    clock = Clock(PROBLEM)
    assert clock.has_time_for(1)
    assert not clock.has_time_for(1e12)

"""Applying a decision: sequences are pruned and repaired where time allows it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from checkmate import DFGraph, Problem, Schedule, Status, generators, keep_all_peak, simulate
from checkmate.testing.strategies import graphs
from checkmate_solvers.search import Incumbent, answer_easy_cases, apply, keep, sequence_of

CHAIN = generators.chain(4)  # nine ops of cost and size 1; the loss is op 4
CLUMSY = [0, 1, 2, 3, 0, 1, 4, 5, 6, 0, 1, 7, 8]
TIGHT = Problem(graph=CHAIN, budget=keep_all_peak(CHAIN) - 1)


def test_a_sequence_over_the_budget_is_not_kept() -> None:
    best = Incumbent(TIGHT)
    assert not keep(best, range(9), "keep-all")
    assert best.sequence is None


def test_needless_computes_are_taken_away() -> None:
    best = Incumbent(TIGHT)
    assert keep(best, CLUMSY, "clumsy")
    assert best.sequence is not None
    assert simulate(CHAIN, Schedule.from_sequence(CHAIN, best.sequence)).cost == best.cost < 13


@given(graph=graphs())
def test_the_two_easy_cases(graph: DFGraph) -> None:
    roomy = Incumbent(Problem(graph=graph, budget=max(1, keep_all_peak(graph))))
    assert answer_easy_cases(roomy)
    assert roomy.solution().status is Status.OPTIMAL


@pytest.mark.parametrize("graph", [CHAIN, generators.residual(8)], ids=["small", "large"])
def test_a_decision_that_does_not_fit_is_repaired(graph: DFGraph) -> None:
    problem = Problem(graph=graph, budget=int(0.7 * keep_all_peak(graph)))
    best = Incumbent(problem)
    kept = {graph.n_ops // 2: np.ones(graph.n_tensors, dtype=np.bool_)}
    apply(best, kept, "all kept")
    assert sequence_of(graph, kept) == list(range(graph.n_ops))
    assert best.sequence is not None
    assert best.found_by.startswith("all kept")


def test_a_step_that_can_not_end_in_time_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a graph of which judging one schedule takes as long as the limit allows."""
    monkeypatch.setattr("checkmate_solvers.search.clock.judging_s", lambda _: TIGHT.time_limit)
    best = Incumbent(TIGHT)
    apply(best, {}, "eviction")
    assert best.sequence is None
    assert keep(best, CLUMSY, "clumsy")
    assert best.sequence == CLUMSY

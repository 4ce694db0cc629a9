"""The report on a peak: the figures of the judge, as a table."""

from __future__ import annotations

import pytest

from checkmate import DFGraph, Problem, Solution, keep_all_peak, solve
from checkmate.report import Account, Kind, peak_report

from .judged import by_hand

KINDS = (Kind.BATCH, Kind.ACTIVATIONS, Kind.ACTIVATIONS, Kind.ACTIVATION_GRADIENTS, Kind.GRADIENTS)


def solution() -> Solution:
    timeline = by_hand()
    return Solution.found(Problem(graph=timeline.graph, budget=50), timeline.schedule)


def test_the_command_reports_the_figures_of_the_judge() -> None:
    found = solution()
    account = Account(kinds=KINDS, fixed={Kind.RESERVE: 10})
    told = peak_report(found, account)
    assert found.timeline is not None
    assert (told.budget, told.peak, told.measured) == (50, found.timeline.peak, None)
    assert told.plain_peak == keep_all_peak(found.problem.graph)
    assert told.by_kind == account.at_peak(found.timeline)
    assert told.overhead == found.timeline.overhead == 0.25
    assert told.largest == (("x", Kind.BATCH, 5), ("B", Kind.ACTIVATIONS, 4), ("C", KINDS[3], 2))


def test_the_table_holds_it_all() -> None:
    told = peak_report(
        solution(), Account(kinds=KINDS, fixed={Kind.RESERVE: 10}), measured=40, remarks=["The fan was loud"]
    )
    text = str(told)
    assert repr(told) == text
    for line in (
        "budget 50 B",
        "measured peak 40 B 97.6% of the predicted",
        "The fan was loud",
        "B 4 B activations",
    ):
        assert line in " ".join(text.split())
    for kind in told.by_kind:
        assert f"\n  {kind} " in text
    assert "while 'c' runs" in text
    assert "measured" not in str(peak_report(solution(), Account(kinds=KINDS)))


def test_without_a_schedule_there_is_no_peak() -> None:
    chain = DFGraph.from_nodes(cost=[1, 1], size=[4, 2], deps=[[], [0]])
    with pytest.raises(ValueError, match="no schedule"):
        peak_report(solve(chain, 5, solver="keep-all", throw=False), Account())

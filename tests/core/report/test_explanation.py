"""What is recomputed, and why: as often, and as dear, as the judge counts."""

from __future__ import annotations

import pytest

from checkmate import DFGraph, Problem, Solution, Timeline, solve
from checkmate.report import explain

from .judged import by_hand, large


def solution(timeline: Timeline, budget: int) -> Solution:
    return Solution.found(Problem(graph=timeline.graph, budget=budget), timeline.schedule)


def test_a_recomputation_by_hand() -> None:
    (row,) = explain(solution(by_hand(), 45), modules=["encoder", "", "", ""]).rows
    assert (row.op, row.module, row.again, row.size, row.saved, row.paid) == ("a", "encoder", 1, 8, 8, 2.0)
    assert row.without == by_hand().peak + 8
    assert row.reason == "kept, the peak would be 49 B: over the budget"
    assert explain(solution(by_hand(), 50)).rows[0].reason == "8 B less at the peak"


def test_the_most_expensive_come_first_and_a_long_table_is_cut() -> None:
    timeline = large(250)
    explanation = explain(solution(timeline, timeline.peak))
    assert sum(row.again for row in explanation.rows) == timeline.recomputes == 25
    assert sum(row.paid for row in explanation.rows) == timeline.cost - timeline.graph.ideal_cost
    assert [row.paid for row in explanation.rows] == sorted(
        (row.paid for row in explanation.rows), reverse=True
    )
    lines = str(explanation).splitlines()
    assert repr(explanation) == str(explanation)
    assert len(lines) == 1 + 20 + 1
    assert lines[-1].split() == ["…", "and", "5", "more", "5"]


def test_nothing_to_explain() -> None:
    chain = DFGraph.from_nodes(cost=[1, 1], size=[4, 2], deps=[[], [0]])
    assert str(explain(solve(chain, 6, solver="keep-all"))) == "nothing is recomputed"
    with pytest.raises(ValueError, match="no schedule"):
        explain(solve(chain, 5, solver="keep-all", throw=False))

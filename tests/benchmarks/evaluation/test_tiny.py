"""Each answer is counted as what it is."""

from __future__ import annotations

import math

import pytest

from checkmate import DFGraph, Problem, Schedule, Solution
from evaluation.results import Results, Row
from evaluation.tiny import EXPERIMENT, _kind

CHAIN = DFGraph.from_nodes(cost=[1, 1], size=[1, 1], deps=[[], [0]])
PROBLEM = Problem(graph=CHAIN, budget=2)


def found(bound: float) -> Solution:
    return Solution.found(PROBLEM, Schedule.from_sequence(CHAIN, [0, 0, 1]), bound=bound)


@pytest.mark.parametrize(
    ("solution", "optimum", "kind"),
    [
        (found(3.0), 3.0, "optimal"),
        (found(3.0), 2.0, "wrong"),
        (found(2.0), 3.0, "open"),
        (found(2.5), 2.0, "wrong"),
        (Solution.infeasible(PROBLEM), math.inf, "infeasible"),
        (Solution.infeasible(PROBLEM), 2.0, "wrong"),
        (Solution.unknown(PROBLEM), math.inf, "open"),
        (found(3.0), None, "optimal"),
        (found(2.0), None, "open"),
    ],
)
def test_an_answer_is_compared_with_the_optimum(solution: Solution, optimum: float | None, kind: str) -> None:
    assert _kind(solution, optimum) == kind


def test_the_table_adds_the_tasks_up() -> None:
    rows = tuple(Row(task=task, result=dict(EXPERIMENT.measure(task))) for task in EXPERIMENT.tasks(True))
    assert sum(row["optimal"] + row["infeasible"] for row in rows) == 40
    page = EXPERIMENT.markdown(Results(experiment="tiny", rows=rows))
    assert "| 4 to 14 | 20 |" in page
    assert "| 15 to 30 | 20 |" in page

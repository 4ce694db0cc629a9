"""The lines of a frontier: they fall, the bound lies below them, and larger budgets are no worse."""

from __future__ import annotations

import pytest

from checkmate import DFGraph, Problem, Schedule, Solution
from checkmate.report.plot import Line, gap_corners, solver_lines
from checkmate.solving.sweep import Frontier

CHAIN = DFGraph.from_nodes(
    cost=[1] * 8, size=[8] * 8, deps=[[], [0], [1], [2], [3], [2, 4], [1, 5], [0, 6]], name="chain"
)
KEEP = Schedule.from_sequence(CHAIN, range(8))  # peak 40, cost 8
LEAN = Schedule.from_sequence(CHAIN, [0, 1, 2, 3, 4, 0, 1, 2, 5, 0, 1, 6, 0, 7])  # peak 32, cost 14


def answer(budget: int, schedule: Schedule, solver: str, bound: float = 0.0) -> Solution:
    return Solution.found(Problem(graph=CHAIN, budget=budget), schedule, solver=solver, bound=bound)


@pytest.fixture
def frontier() -> Frontier:
    small = Problem(graph=CHAIN, budget=8)
    return Frontier(
        graph=CHAIN,
        answers=(
            answer(32, LEAN, "lean", bound=10.0),
            answer(36, LEAN, "lean", bound=9.0),
            answer(40, KEEP, "keep"),
            answer(48, LEAN, "lean"),
            Solution.infeasible(small, solver="lean"),
            Solution.unknown(small, solver="keep"),
        ),
    )


def test_lines_serve_larger_budgets_and_skip_what_has_no_schedule(frontier: Frontier) -> None:
    assert solver_lines(frontier) == {
        "keep": Line([40], [0.0]),
        "lean": Line([32, 36, 48], [0.75, 0.75, 0.75]),
    }


def test_the_gap_lies_between_the_bound_and_the_best(frontier: Frontier) -> None:
    corners = gap_corners(frontier)
    assert [b for b, _, _ in corners] == sorted(b for b, _, _ in corners)
    assert all(low <= high + 1e-12 for _, low, high in corners)
    assert corners[0] == (32, 0.125, 0.75)
    assert (40, 0.0, 0.0) in corners


def test_nothing_found_draws_nothing() -> None:
    unknown = Solution.unknown(Problem(graph=CHAIN, budget=8), solver="x")
    empty = Frontier(graph=CHAIN, answers=(unknown,))
    assert (solver_lines(empty), gap_corners(empty)) == ({}, [])

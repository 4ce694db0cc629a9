"""A schedule that is known before: the answer costs no more, and it is checked first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.core.graphs import CHAIN, DIAMOND, Says

from checkmate import (
    InvalidScheduleError,
    Problem,
    Schedule,
    ScheduleCache,
    Solution,
    solve,
)


def test_the_answer_costs_no_more_than_a_start_within_the_budget() -> None:
    cheap = Schedule.from_sequence(CHAIN, range(8))
    dear = Says(lambda p: Solution.found(p, Schedule.from_sequence(CHAIN, [0, *range(8)]), bound=7.5))
    found = solve(CHAIN, 48, solver=dear, start=cheap)
    assert (found.cost, found.bound, found.schedule) == (8.0, 8.0, cheap)
    assert solve(CHAIN, 32, solver="heuristics", start=cheap).cost == 9.0  # it needs 40 bytes
    swapped = Schedule.from_sequence(DIAMOND, [0, 2, 1, 3])
    twice = Says(lambda p: Solution.found(p, Schedule.from_sequence(DIAMOND, [0, 0, 1, 2, 3])))
    assert solve(DIAMOND, "200%", solver=twice, start=swapped, fixed_order=True).cost == 5.0


@dataclass(frozen=True)
class Dear:
    """Computes op 0 once more; as a frozen dataclass, it is cached."""

    def solve(self, problem: Problem) -> Solution:
        return Solution.found(problem, Schedule.from_sequence(CHAIN, [0, *range(8)]))


def test_a_start_that_is_cheaper_than_the_cached_answer_is_a_new_question(tmp_path: Path) -> None:
    cheap, kept = Schedule.from_sequence(CHAIN, range(8)), ScheduleCache(tmp_path)
    costs = [
        solve(CHAIN, 48, solver=Dear(), start=start, cache=kept).cost for start in (None, cheap, None, cheap)
    ]
    assert costs == [9.0, 8.0, 9.0, 8.0]


def test_an_invalid_start_is_refused_before_anything_runs() -> None:
    def never(problem: Problem) -> Solution:
        raise AssertionError("asked")

    with pytest.raises(InvalidScheduleError):
        solve(CHAIN, 40, solver=Says(never), start=Schedule.from_sequence(CHAIN, [1, 0]))

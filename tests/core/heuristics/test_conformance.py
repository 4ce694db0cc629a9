"""The laws of solvers, for each heuristic that is registered, and for settings of them that are not."""

from __future__ import annotations

import pytest

from checkmate.heuristics import ChenSqrtN
from checkmate.plugins import Solver
from checkmate.testing import SolverConformance

HEURISTICS = ("heuristics", "first-fit", "keep-all", "chen-sqrt-n", "evict-belady", "evict-dtr")


@pytest.mark.slow
class TestHeuristics(SolverConformance):
    examples = 15

    @pytest.fixture(autouse=True, params=HEURISTICS)
    def _named(self, request: pytest.FixtureRequest) -> None:
        self.solver_name = request.param


class TestOneSegmentLength(SolverConformance):
    examples = 30

    def solver(self) -> Solver:
        return ChenSqrtN(segment=2)

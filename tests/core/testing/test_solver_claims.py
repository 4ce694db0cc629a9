"""A heuristic that claims proofs fails the law for its claim, although the claim is nearly always true."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from checkmate import Problem, Solution, Status
from checkmate.heuristics import BestHeuristic, FirstFit
from checkmate.plugins import Solver
from checkmate.testing import SolverConformance


def optimal(problem: Problem, found: Solution) -> Solution:
    return found if found.timeline is None else Solution.found(problem, found.timeline, bound=found.cost)


def bound(problem: Problem, found: Solution) -> Solution:
    return found if found.timeline is None else replace(found, status=Status.FEASIBLE, bound=found.cost)


def infeasible(problem: Problem, found: Solution) -> Solution:
    return Solution.infeasible(problem) if found.timeline is None else found


@dataclass(frozen=True)
class Claims:
    heuristic: Solver
    claim: Callable[[Problem, Solution], Solution]

    def solve(self, problem: Problem) -> Solution:
        return self.claim(problem, self.heuristic.solve(problem))


@pytest.mark.parametrize("heuristic", [BestHeuristic(), FirstFit()], ids=lambda x: type(x).__name__)
@pytest.mark.parametrize(
    ("law", "claim"),
    [("optimal_is_optimal", optimal), ("bound", bound), ("infeasible_is_infeasible", infeasible)],
)
def test_a_heuristic_that_claims_proofs_is_caught(failing, heuristic: Solver, law: str, claim) -> None:
    class Case(SolverConformance):
        guarantee = "heuristic"
        features = frozenset()
        examples = 60

        def solver(self) -> Solver:
            return Claims(heuristic, claim)

    assert set(failing(Case(), only=law)) == {law}

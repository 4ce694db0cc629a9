"""Solvers whose false claims are nearly always true, or that are late on few graphs, are caught."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from checkmate import Problem, Schedule, Solution, Status
from checkmate.analysis import needed_ops
from checkmate.heuristics import BestHeuristic, FirstFit
from checkmate.plugins import Solver
from checkmate.testing import SolverConformance, cheapest_schedule
from checkmate.testing.conformance import solver as conformance


def failing_law(failing, law: str, made: Solver) -> bool:
    class Case(SolverConformance):
        guarantee = "heuristic"
        features = frozenset()

        def solver(self) -> Solver:
            return made

    return bool(failing(Case(), only=law))


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
def test_a_heuristic_that_claims_proofs(failing, heuristic: Solver, law: str, claim) -> None:
    assert failing_law(failing, law, Claims(heuristic, claim))


@dataclass(frozen=True)
class ForgetsTheOrder:
    """Keeps optima of graphs and budgets, whatever the rule of order."""

    known: dict[object, Schedule | None] = field(default_factory=dict)

    def solve(self, problem: Problem) -> Solution:
        if needed_ops(problem.graph).sum() > 12:
            return BestHeuristic().solve(problem)
        key = problem.graph.digest, problem.budget
        known = self.known.get(key)
        if known is None or (problem.fixed_order and not known.keeps_base_order):
            known = self.known[key] = cheapest_schedule(problem)
        if known is None:
            return Solution.infeasible(problem)
        return optimal(problem, Solution.found(problem, known))


def test_a_cache_that_forgets_the_rule_of_order(failing) -> None:
    assert failing_law(failing, "optimal_is_optimal", ForgetsTheOrder())


class SlowInBetween:
    def solve(self, problem: Problem) -> Solution:
        if 30 <= problem.graph.n_ops <= 150:
            time.sleep(3 * problem.time_limit)
        return FirstFit().solve(problem)


def test_an_answer_that_is_late_on_graphs_of_middle_size(failing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conformance, "slowdown", lambda: 1.0)
    assert failing_law(failing, "time_limit", SlowInBetween())

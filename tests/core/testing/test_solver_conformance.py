"""Each check of solvers finds its fault, in a solver that has no other; right ones pass all."""

from __future__ import annotations

import pytest

from checkmate.plugins import Solver
from checkmate.testing import SolverConformance
from checkmate.testing.conformance import solver as conformance

from .wrong_solvers import ELSEWHERE, EXACT, FAULTS, MONOTONE, RARE, Right, Spoil, Wrong, never_ends


@pytest.fixture(autouse=True)
def _idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer is excused by a busy machine."""
    monkeypatch.setattr(conformance, "slowdown", lambda: 1.0)


def checked(solver: Solver, spoil: Spoil | None = None, count: int = 60) -> SolverConformance:
    class Case(SolverConformance):
        guarantee = "exact" if spoil is None or spoil in EXACT else "heuristic"
        features = frozenset({"monotone"}) if spoil is None or spoil in MONOTONE else frozenset()
        slack_s = 1.0 if spoil is never_ends else 60.0
        examples = count

        def solver(self) -> Solver:
            return solver

    return Case()


def test_a_right_solver_passes_every_check(failing) -> None:
    assert failing(checked(Right(), count=40)) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "spoil"),
    [(c, s) for c, row in FAULTS.items() for s in row],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_a_wrong_solver_fails_the_check_for_its_fault_and_no_other(failing, check: str, spoil: Spoil) -> None:
    assert set(failing(checked(Wrong(spoil), spoil, 150 if spoil in RARE else 60), only=check)) == {check}
    assert failing(checked(Wrong(spoil), spoil, count=8), but=check).keys() <= ELSEWHERE.get(spoil, set())


def test_every_check_has_a_wrong_solver() -> None:
    checks = {name.removeprefix("test_") for name in dir(SolverConformance) if name.startswith("test_")}
    assert checks == set(FAULTS)

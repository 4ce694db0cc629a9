"""One solve in a process: whatever a solver does, there is an answer; and how moments are read."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import generators
from evaluation.solving import Moment, cost_s, gap_s, solved, thinned

BAD_SOLVERS = """
import os, signal, time
from checkmate import Progress, Schedule, Solution

class Dies:
    def solve(self, problem):
        if problem.graph.name == "asked":
            problem.on_progress(Progress(123.0, 1.0, 0.0, "so far"))
            os.kill(os.getpid(), signal.SIGSEGV)
        return Solution.unknown(problem)

class Raises:
    def solve(self, problem):
        raise ValueError("no idea")

class Sleeps:
    def solve(self, problem):
        while problem.graph.name == "asked":
            try:
                time.sleep(60)
            except BaseException:
                pass
        return Solution.unknown(problem)

class Swallows:
    def solve(self, problem):
        return bytearray(2**31)

class Needs:
    def __init__(self):
        import a_package_that_nobody_has
"""


def test_a_solve_reports_cost_bound_peak_times_and_memory() -> None:
    kept = solved(generators.chain(8), 1.0, "keep-all", time_limit=1, late_s=20)
    assert (kept["ended"], kept["cost"], kept["bound"], kept["peak"]) == ("optimal", 1, 1, kept["budget"])
    fitted = solved(generators.chain(8), 0.5, "first-fit", time_limit=1, late_s=20, clock="wall")
    assert fitted["ended"] == "feasible"
    assert fitted["peak"] <= fitted["budget"] == 5
    assert 0 <= fitted["first_s"] <= fitted["near_s"] <= fitted["final_s"]
    assert fitted["held"] > 0


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
@pytest.mark.parametrize(
    ("name", "ended", "note"),
    [
        ("bad:Dies", "crashed", ("SIGSEGV", "reported a cost of 123")),
        ("bad:Raises", "failed", ("no idea",)),
        ("bad:Sleeps", "killed", ("still running",)),
        ("bad:Swallows", "failed", ("MemoryError",)),
        ("bad:Needs", "not installed", ("a_package_that_nobody_has",)),
        ("nobody", "not installed", ("nobody",)),
    ],
)
def test_a_bad_solver_is_an_answer(
    name: str, ended: str, note: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad.py").write_text(BAD_SOLVERS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    graph = dataclasses.replace(generators.chain(8), name="asked")
    found = solved(graph, 0.5, name, time_limit=1, late_s=0.2, memory=2**30)
    assert (found["ended"], found["cost"]) == (ended, None)
    assert all(words in found["note"] for words in note)


def test_times_are_those_of_the_first_moment_that_is_good_enough() -> None:
    moments = [(0.1, None, 8.0), (0.2, 12.0, 8.0), (0.5, 10.4, 8.0), (1.0, 10.0, 9.0), (2.0, 10.0, 9.99)]
    assert [cost_s(moments, cost) for cost in (float("inf"), 10.5, 10.1, 10.0)] == [0.2, 0.5, 1.0, 1.0]
    assert cost_s(moments, 9.9) is None
    assert [gap_s(moments, gap) for gap in (0.1, 0.0011, 0.0001)] == [1.0, 2.0, None]


moments = st.lists(st.tuples(st.floats(0, 10), st.none() | st.floats(1, 100), st.floats(0, 100)), max_size=30)


@given(moments=moments)
def test_thinning_keeps_the_ends_and_the_order(moments: list[Moment]) -> None:
    kept = thinned(moments)
    assert kept[:1] == moments[:1]
    assert kept[-1:] == moments[-1:]
    rest = iter(moments)
    assert all(any(moment is one for one in rest) for moment in kept)


@given(moments=moments, cost=st.floats(1, 100))
def test_thinning_moves_no_cost_by_more_than_a_thousandth_of_a_percent(
    moments: list[Moment], cost: float
) -> None:
    best, falling = float("inf"), []
    for seconds, found, _ in moments:  # as solvers report: costs fall
        best = min(best, found or float("inf"))
        falling.append((seconds, None if best == float("inf") else best, 0.0))
    if cost_s(falling, cost) is not None:
        assert cost_s(thinned(falling), cost * (1 + 2e-5)) is not None

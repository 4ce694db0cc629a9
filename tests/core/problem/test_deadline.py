"""A deadline passes in wall time; a patient one only after the same CPU time."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from checkmate.problem.deadline import NEVER, Deadline


class Clocks:
    """Wall time and CPU time, which change only when set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall = self.cpu = 0.0
        clocks = SimpleNamespace(monotonic=lambda: self.wall, thread_time=lambda: self.cpu)
        monkeypatch.setattr("checkmate.problem.deadline.time", clocks)


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


@pytest.mark.parametrize("patient", [False, True])
def test_on_an_idle_machine_both_kinds_are_the_same(clocks: Clocks, patient: bool) -> None:
    deadline = Deadline(10, patient=patient)
    half = deadline.part(0.5)
    clocks.wall = clocks.cpu = 4
    assert (deadline.left_s, half.left_s, deadline.passed) == (6, 1, False)
    clocks.wall = clocks.cpu = 10
    assert deadline.passed


def test_a_patient_one_waits_for_the_work(clocks: Clocks) -> None:
    deadline, patient = Deadline(10), Deadline(10, patient=True)
    clocks.wall, clocks.cpu = 40, 2
    assert deadline.passed
    assert (patient.left_s, patient.part(0.5).left_s) == (8, 4)
    clocks.cpu = 10
    assert patient.passed


def test_work_of_other_threads_or_processes_takes_nothing_away(clocks: Clocks) -> None:
    patient = Deadline(10, patient=True)
    clocks.cpu = 50
    assert patient.left_s == 10


def test_never_is_never() -> None:
    assert not NEVER.passed
    assert NEVER.part(0.5).left_s == math.inf
    assert not Deadline(math.inf, patient=True).passed

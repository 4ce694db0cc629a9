"""``checkmate run``: steps by a schedule from a file; schedules of other programs are refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import Result

from checkmate import DFGraph, read_graph, write_schedule
from checkmate.model.schedule import Compute, Schedule
from checkmate.plugins import StepReport

Checkmate = Callable[..., Result]
RUN = ("run", "--torch", "program:eight", "s.json")


def executor_of(graph: object, step: Callable[..., object] = len) -> SimpleNamespace:
    """An executor whose programs have this graph, and this step."""
    runnable = SimpleNamespace(traced=SimpleNamespace(graph=graph), step=step)
    return SimpleNamespace(prepare=lambda *_, **__: runnable, bind=lambda *_: ())


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layers: None) -> Iterator[None]:
    """A module in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "program.py").write_text("eight = lambda: (print('noise'), 8)[1]\n\nsix = lambda: 6\n")
    yield
    sys.modules.pop("program", None)


@pytest.fixture(autouse=True)
def traced(program: None, checkmate: Checkmate) -> DFGraph:
    """The graph of the program in ``g.json``, and a schedule with a recomputation in ``s.json``."""
    assert checkmate("trace", "--torch", "program:eight", "-o", "g.json").exit_code == 0
    assert checkmate("solve", "g.json", "--budget", "32", "-o", "s.json").exit_code == 0
    return read_graph("g.json")


def test_steps_are_shown_beside_the_simulators_peak(checkmate: Checkmate) -> None:
    shown = checkmate(*RUN)
    assert shown.exit_code == 0, shown.output
    assert "noise" not in shown.stdout
    assert "Within the simulator's peak: at most 32 of 32 bytes (100.0%)." in shown.stdout
    for text in ("measured peak", "simulator's peak", "0.333333", "32 B"):
        assert text in shown.stdout
    facts = json.loads(checkmate(*RUN, "--steps", 2, "--json").stdout)
    assert facts == {
        "executor": "torch",
        "simulated_peak": 32,
        "within": True,
        "steps": [
            {"loss": 1.0, "peak": 32, "seconds": 0.5, "over": 0},
            {"loss": 0.5, "peak": 32, "seconds": 0.5, "over": 0},
        ],
    }


def test_steps_that_update_nothing_are_called_one_step(
    checkmate: Checkmate, offer: Callable[..., None], traced: DFGraph
) -> None:
    assert "the same step" not in checkmate(*RUN).stdout
    offer(executor_of(traced, lambda _: StepReport(loss=2.5, peak=32, seconds=0.5)))
    assert "the same step, 3 times: nothing is updated" in checkmate(*RUN).stdout
    assert "the same step" not in checkmate(*RUN, "--steps", 1).stdout


def test_a_schedule_may_come_from_standard_input(checkmate: Checkmate, tmp_path: Path) -> None:
    content = (tmp_path / "s.json").read_bytes()
    assert checkmate(*RUN[:-1], "-", "--graph", "g.json", input=content).exit_code == 0
    broken = checkmate(*RUN[:-1], "-", input=content[:-9])
    assert (broken.exit_code, "Error: <st" in broken.stderr) == (2, True)


def test_a_step_above_the_simulators_peak_is_exit_1(checkmate: Checkmate, offer: Callable[..., None]) -> None:
    offer(leak=5)
    result = checkmate(*RUN, "--json")
    assert (result.exit_code, json.loads(result.stdout)["within"]) == (1, False)
    assert "Error: a step held 5 bytes more than the simulator's peak of 32 bytes" in result.stderr


def test_memory_that_is_not_measured_is_said(checkmate: Checkmate, offer: Callable[..., None]) -> None:
    offer(leak=None)
    assert "measured no memory" in checkmate(*RUN).stdout
    assert json.loads(checkmate(*RUN, "--json").stdout)["within"] is None


def test_with_other_costs_the_graph_of_the_schedule_is_needed(checkmate: Checkmate) -> None:
    result = checkmate(*RUN, "--cost-model", "apples")
    assert (result.exit_code, result.stdout) == (2, "")
    for text in ("s.json", "another graph", "Costs count in digests", "--graph"):
        assert text in result.stderr
    assert checkmate(*RUN, "--cost-model", "apples", "--graph", "g.json").exit_code == 0


def test_a_schedule_of_another_program_is_refused_with_the_difference(checkmate: Checkmate) -> None:
    result = checkmate("run", "--torch", "program:six", "s.json", "--graph", "g.json")
    assert result.exit_code == 2
    assert "the one traced now: 6 ops, not 8" in result.stderr


def test_a_higher_peak_than_on_the_schedules_graph_is_a_warning(
    checkmate: Checkmate, offer: Callable[..., None], traced: DFGraph
) -> None:
    assert "Warning" not in checkmate(*RUN, "--graph", "g.json").stderr
    report = StepReport(loss=None, peak=39, seconds=0.5)
    offer(executor_of(replace(traced, fixed_size=7), lambda _: report))
    result = checkmate(*RUN, "--graph", "g.json")
    assert result.exit_code == 0
    assert "Warning: on the graph of --graph the schedule's peak is 32 bytes" in result.stderr
    assert "now it is 39 bytes" in result.stderr


def test_the_graph_must_be_that_of_the_schedule(checkmate: Checkmate, graph: Path) -> None:
    result = checkmate(*RUN[:2], "absent:factory", "s.json", "--graph", graph)
    assert result.exit_code == 2
    assert "is of another graph" in result.stderr
    assert "<DFGraph 'chain'" in result.stderr  # before anything is imported


def test_an_invalid_schedule_is_exit_1(checkmate: Checkmate, traced: DFGraph) -> None:
    write_schedule("s.json", Schedule.of([Compute(1)]), traced)
    result = checkmate(*RUN)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "Not valid: step 0" in result.stderr


def test_an_executor_that_keeps_the_order_gets_no_other(
    checkmate: Checkmate, offer: Callable[..., None]
) -> None:
    two = DFGraph.from_nodes(cost=[1, 1], size=[8, 8], deps=[[], []])
    write_schedule("s.json", Schedule.from_sequence(two, [1, 0]), two)
    offer(executor_of(two), features=())
    result = checkmate(*RUN)
    assert (result.exit_code, "solve with --fixed-order" in result.stderr) == (2, True)


def test_an_executor_that_breaks_its_contract_is_one_line(
    checkmate: Checkmate, offer: Callable[..., None], traced: DFGraph
) -> None:
    for executor, message in (
        (SimpleNamespace(bind=len), "can't run programs by name: it has no prepare()"),
        (executor_of(5), "gave a int, not a graph"),
        (executor_of(traced), "gave a int, not a StepReport"),
    ):
        offer(executor)
        result = checkmate(*RUN)
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"the executor 'torch' {message}" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "0"], "--steps"),
        (["--graph", "none.json"], "does not exist"),
        (["--torch", "program:nine"], "module 'program' has no 'nine'"),
    ],
)
def test_bad_arguments_are_exit_2(checkmate: Checkmate, arguments: list[str], message: str) -> None:
    result = checkmate(*RUN, *arguments)
    assert (result.exit_code, message in result.stderr) == (2, True)


def test_without_a_program_or_an_executor_the_error_gives_advice(
    checkmate: Checkmate, plug: Callable[..., None]
) -> None:
    assert "runs layers" in checkmate("run", "--help").stdout
    result = checkmate("run", "s.json")
    assert (result.exit_code, "say what to run, once: --torch" in result.stderr) == (2, True)
    plug()
    result = checkmate("run", "s.json")
    assert (result.exit_code, "no executor is installed" in result.stderr) == (2, True)

"""Tasks are answered once, their rows are written at once, and only errors are repeated."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import evaluation
from evaluation.experiment import Experiment
from evaluation.results import Results, Task, read_results
from evaluation.runner import run

TASKS = [{"n": n} for n in (3, 1, 2)]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers that the experiment "squares" got; its first call with 2 fails."""
    calls: list[int] = []

    def measure(task: Task) -> Mapping[str, Any]:
        calls.append(task["n"])
        if task["n"] == 2 and calls.count(2) == 1:
            raise ArithmeticError("too much")
        return {"square": task["n"] ** 2}

    squares = Experiment(
        name="squares",
        title="Squares",
        about="of numbers",
        tasks=lambda _: TASKS,
        measure=measure,
        markdown=lambda results: str(results.distinct("square")),
    )
    monkeypatch.setattr(evaluation, "EXPERIMENTS", {"squares": squares})
    return calls


def squares(file: Path, tasks: list[dict[str, int]] = TASKS, **options: Any) -> Results:
    return run(evaluation.EXPERIMENTS["squares"], tasks, file, **options)


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_stand_in_the_order_of_the_tasks(asked: list[int], tmp_path: Path, workers: int) -> None:
    file = tmp_path / "squares.json"
    if workers:
        with ThreadPoolExecutor(workers) as pool:
            results = squares(file, executor=pool)
    else:
        results = squares(file)
    assert [(row["n"], row["square"], row.error) for row in results.rows] == [
        (3, 9, ""),
        (1, 1, ""),
        (2, None, "ArithmeticError: too much"),
    ]
    assert read_results(file) == results


def test_only_failed_or_new_tasks_run_again(asked: list[int], tmp_path: Path) -> None:
    file = tmp_path / "squares.json"
    squares(file, session={"load": 1.0})
    seen = []
    results = squares(
        file, [*TASKS, {"n": 4}], session={"load": 2.0}, on_row=lambda row: seen.append(row["n"])
    )
    assert asked == [3, 1, 2, 2, 4]
    assert sorted(seen) == [1, 2, 3, 4]
    assert results.distinct("square") == [9, 1, 4, 16]
    assert [facts["load"] for facts in results.sessions] == [1.0, 2.0]
    again = squares(file, [*TASKS, {"n": 4}], session={"load": 3.0})
    assert again == results, "a run that adds no row adds no session"


def test_an_interrupted_run_goes_on_from_its_last_row(asked: list[int], tmp_path: Path) -> None:
    def interrupt(row: Any) -> None:
        if row["n"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        squares(tmp_path / "squares.json", on_row=interrupt)
    squares(tmp_path / "squares.json")
    assert asked == [3, 1, 2]


def test_a_file_of_another_experiment_is_left_alone(asked: list[int], tmp_path: Path) -> None:
    file = tmp_path / "cubes.json"
    text = json.dumps({"format": "checkmate.evaluation", "experiment": "cubes"})
    file.write_text(text)
    with pytest.raises(ValueError, match=r"holds 'cubes', not 'squares': choose another file"):
        squares(file)
    assert file.read_text() == text

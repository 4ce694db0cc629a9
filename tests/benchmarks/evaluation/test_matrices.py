"""The largest batch of a method, and the ops of its schedule in each stage."""

from __future__ import annotations

import pytest

from evaluation import matrices
from evaluation.results import Results, Row

QUICK = {task["solver"]: task for task in matrices.EXPERIMENT.tasks(True)}


@pytest.fixture(scope="module")
def results() -> Results:
    pytest.importorskip("torch")
    small = {solver: {**task, "budget": 3_000_000} for solver, task in QUICK.items()}
    rows = [Row(task=task, result=dict(matrices.measure(task))) for task in small.values()]
    return Results(experiment="matrices", rows=(*rows,))


def test_recomputation_makes_room_for_more(results: Results) -> None:
    batch = {row["solver"]: row["batch"] for row in results.rows}
    assert 0 < batch["keep-all"] < batch["chen-greedy-ap"] <= batch["auto"]
    assert all(row["peak"] <= 3_000_000 for row in results.rows)


def test_a_stage_is_that_in_which_the_op_of_its_number_first_runs(results: Results) -> None:
    for row in results.where(solver="chen-greedy-ap"):
        assert [ops[-1] for ops in row["stages"]] == list(range(row["ops"]))
        assert sum(map(len, row["stages"])) > row["ops"], "and others run again"


def test_keep_all_is_a_diagonal(results: Results) -> None:
    (row,) = results.where(solver="keep-all")
    assert row["stages"] == [[op] for op in range(row["ops"])]
    assert row["cost"] == 1.0


def test_no_room_is_a_batch_of_none() -> None:
    pytest.importorskip("torch")
    answer = matrices.measure({**QUICK["keep-all"], "budget": 1000})
    assert answer == {"batch": 0, "proved": True}
    text = matrices.markdown(
        Results(experiment="matrices", rows=(Row(task=QUICK["keep-all"], result=dict(answer)),))
    )
    assert "| keep-all | 0 | proved | – | – | – |" in text


def test_each_method_that_has_a_schedule_has_a_picture(results: Results) -> None:
    titles = [axes.get_title().splitlines()[0] for axes in matrices.draw(results).axes if axes.get_title()]
    assert titles == list(QUICK)

"""The ablation: each omitted step is compared with all steps on the same case."""

from __future__ import annotations

from typing import Any

import pytest

from checkmate_solvers.auto import STEPS
from evaluation.ablation import EXPERIMENT
from evaluation.results import Results, Row


def row(cost: float | None, *, without: tuple[str, ...] = (), seed: int = 0, graph: str = "g") -> Row:
    task = {"graph": graph, "share": 0.5, "without": list(without), "seed": seed, "time_limit": 1.0}
    first = None if cost is None else 0.5
    return Row(task=task, result={"ops": 9, "cost": cost, "bound": 1.0, "first_s": first, "cpu_s": 2.0})


def lines(*rows: Row) -> dict[str, list[str]]:
    """The first table, by omitted step."""
    text = EXPERIMENT.markdown(Results(experiment="ablation", rows=rows)).split("All steps")[0]
    table = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return {line[0]: line[1:] for line in table[2:]}


def test_every_step_is_left_out_of_every_case_once() -> None:
    tasks = EXPERIMENT.tasks(False)
    cases = {(task["graph"], task["share"]) for task in tasks}
    for step in STEPS:
        assert {(t["graph"], t["share"]) for t in tasks if t["without"] == [step]} == cases
    assert sum(not task["without"] for task in tasks) == 2 * len(cases), "and nothing, with two seeds"


def test_a_cost_is_compared_with_that_of_all_steps_on_the_same_case() -> None:
    rows = [row(1.25), row(2.0, graph="h"), row(1.25, seed=1)]
    rows += [row(1.25, without=("min-cut",)), row(8.0, without=("min-cut",), graph="h")]
    found = lines(*rows)
    assert list(found) == ["nothing", "nothing, another seed", "min-cut"]
    assert found["min-cut"] == ["2.00000", "4.0000", "h at 50.0%", "0", "53.750%", "0.500", "2.00"]
    assert found["nothing"][:3] == ["1.00000", "1.0000", "–"]


def test_cases_without_a_schedule_are_counted_and_no_mean_is_made_of_them() -> None:
    found = lines(
        row(1.25),
        row(1.5, graph="h"),
        row(None, without=("chains",)),
        row(1.5, without=("chains",), graph="h"),
    )
    assert found["chains"][0] == "1.00000"
    assert found["chains"][3] == "1"
    assert lines(row(1.25), row(None, without=("chains",)))["chains"][:4] == ["–", "–", "–", "1"]


def test_steps_that_are_left_out_together_have_a_name() -> None:
    together = ("first-cycle", "local-search")
    assert "all local search" in lines(row(1.25), row(1.5, without=together))


def test_the_picture_has_a_bar_for_each() -> None:
    results = Results(experiment="ablation", rows=(row(1.25), row(1.5, without=("chains",))))
    figure: Any = EXPERIMENT.draw(results)
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == ["nothing", "chains"]


@pytest.mark.parametrize("without", [[], ["local-search", "first-cycle"]])
def test_one_case(without: list[str]) -> None:
    (task, *_) = (t for t in EXPERIMENT.tasks(True) if t["graph"] == "chain32-random")
    found = EXPERIMENT.measure(task | {"without": without, "seed": 0, "time_limit": 0.5})
    assert 1.0 <= found["bound"] <= found["cost"] < 1.5
    assert 0 < found["first_s"] <= found["cpu_s"]

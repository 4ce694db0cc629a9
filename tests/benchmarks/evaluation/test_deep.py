"""What the page says about deep budgets follows from the rows."""

from __future__ import annotations

from typing import Any

from evaluation.deep import EXPERIMENT
from evaluation.results import Results, Row


def cell(
    auto: float | None, search: float | None, share: float = 0.3, name: str = "net", seed: int = 0
) -> Row:
    def answer(cost: float | None) -> dict[str, Any]:
        return {
            "ended": "feasible",
            "cost": cost,
            "bound": 1.0,
            "first_s": 0.1,
            "near_s": 0.2,
            "final_s": 1.0,
        }

    result = {"ops": 400, "floor": 0.1, "auto": answer(auto), "local-search": answer(search)}
    alone = {} if seed else {"cut-milp": answer(None)}
    return Row(task={"trace": name, "share": share, "seed": seed}, result=result | alone)


def test_cases_are_counted_by_their_gap_and_by_parts_that_did_better() -> None:
    costs = (1.005, 1.004), (1.1, 1.05), (None, 1.2), (1.02, None)
    cells = *(cell(*both, name=f"net{i}") for i, both in enumerate(costs)), cell(1.2, 1.2, 0.15)
    below_the_floor = Row(task={"trace": "net", "share": 0.2}, result={"ops": 400, "floor": 0.3})
    least = Row(
        task={"trace": "net", "share": "least"},
        result={"ops": 400, "floor": 0.1, "least": 0.11, "least_s": 2.0, "least_bound": 0.105},
    )
    text = EXPERIMENT.markdown(Results(experiment="deep", rows=(*cells, below_the_floor, least)))
    assert "| 30% | 4 | 3 | 1 | 2 | 2 | 1.96% | 2 | 0 |" in text
    assert "| 15% | 1 | 1 | 0 | 0 | 0 | 16.67% | 0 | 0 |" in text
    assert "| ≥ 20% | 4 | 3 | 1 | 2 | 2 | 1.96% | 2 | 0 |" in text
    assert "| net2 | 400 | 30% | 10.0% | – | 1.0000 | – |" in text
    assert "| net | 400 | 10.0% | 10.5% | 11.0% | 1.048 | 2.0 |" in text


def test_a_case_is_the_median_of_its_seeds() -> None:
    cells = tuple(cell(cost, None, seed=seed) for seed, cost in enumerate((1.2, 1.1, None)))
    text = EXPERIMENT.markdown(Results(experiment="deep", rows=cells))
    assert "| net | 400 | 30% | 10.0% | 1.2000 | 1.0000 |" in text
    assert "| 30% | 1 | 1 | 0 |" in text


def test_a_wide_gap_is_shown_after_both_time_limits() -> None:
    short = cell(1.25, 1.3)
    answer = {**short["auto"], "cost": 1.1}
    long = Row(task={**short.task, "time_limit": 300.0}, result={"ops": 400, "floor": 0.1, "auto": answer})
    text = EXPERIMENT.markdown(Results(experiment="deep", rows=(short, long)))
    assert "| 30% | 1 | 1 | 0 |" in text  # the long run is no further case
    assert "| net | 30% | 1.2500 | 1.1000 | 1.0000 | 1.0000 | 20.00% | 9.09% |" in text

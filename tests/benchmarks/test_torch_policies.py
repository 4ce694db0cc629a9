"""Judged and exported policies beside executed ones become two tables."""

from __future__ import annotations

from evaluation.results import Results, Row, key_of
from evaluation.torch_policies import EXPERIMENT

MIB = 2**20
JUDGED = {
    "policy": "each layer",
    "peak": 99 * MIB,
    "measured": 100 * MIB,
    "overhead": 0.3,
    "flops_again": 5,
    "flops_counted": 5,
}
EXPORTED = {
    "budget": "50%",
    "target": "sac",
    "bytes": 110 * MIB,
    "peak": 100 * MIB,
    "measured": 100 * MIB,
    "overhead": 0.2,
    "own_overhead": 0.1,
    "bound": 0.09,
    "usual": 0.3,
    "usual_at_peak": None,
}


def test_tasks_differ_and_are_of_eight_architectures() -> None:
    tasks = EXPERIMENT.tasks(False)
    assert len(set(map(key_of, tasks))) == len(tasks)
    assert len({task["network"] for task in tasks}) == 8


def test_the_tables_count_what_is_close_and_within_the_budget() -> None:
    off = JUDGED | {"measured": 90 * MIB, "flops_counted": 6}
    none = {"budget": "35%", "target": "sac", "failed": "the least peak is 9.5 MiB"}
    rows = (
        Row(task={"network": "A", "part": "judge", "budgets": []}, result={"rows": [JUDGED, off]}),
        Row(task={"network": "A", "part": "export", "budgets": ["50%"]}, result={"rows": [EXPORTED, none]}),
        Row(task={"network": "B", "part": "judge", "budgets": []}, result={"failed": "Error: why"}),
    )
    said = EXPERIMENT.markdown(Results(experiment=EXPERIMENT.name, rows=rows))
    assert "Of 2 policies, 1 have a peak within 2 %" in said
    assert "FLOPs that run again are equal for 1." in said
    assert "| A | each layer | 99.0 | 100.0 | -1.00% | yes | +30.0% |" in said
    assert "`sac`: of 2 questions, 1 have a policy; executed, 1 of them are within the budget" in said
    assert "1 are no more expensive than what is usual at the same peak or a lower one, and 1 than" in said
    assert "| A | 50% | sac | 100.0 | 100.0 | 90.9% | +20.0% | +30.0% | +10.0% | +9.0% |" in said
    assert "| A | 35% | sac | none: 9.5 MiB |" in said
    assert "- B: Error: why" in said

"""Ranks under FSDP2 become three tables; a network is trained by two processes."""

from __future__ import annotations

from evaluation.fsdp import EXPERIMENT
from evaluation.results import Results, Row
from steps.process import LEAST

MIB = 2**20


def test_each_question_has_a_table_and_a_failure_is_named() -> None:
    run = {"budget": 8 * MIB, "predicted": 6 * MIB, "measured": 5 * MIB, "overhead": 0.125}
    runs = [run | {"within": True, "bits": True}, run | {"within": False, "bits": True}, {"needs": 7 * MIB}]
    plain = {"plain_predicted": 12 * MIB, "plain_measured": 10 * MIB}
    world = {"plain_predicted": 9 * MIB, "predicted": 4 * MIB, "overhead": 0.25}
    short = {"plain_predicted": 9 * MIB, "needs": 8 * MIB}
    beside = {
        "theirs_predicted": 3 * MIB,
        "theirs_measured": 4 * MIB,
        "theirs_overhead": 0.3,
        "at_their_peak": {"predicted": 3 * MIB, "overhead": 0.1},
        "at_their_cost": {"predicted": 2 * MIB, "overhead": 0.2},
    }
    rows = [
        Row(
            task={"network": "A", "asks": "budgets", "shares": [0.8, LEAST, 0.5]},
            result=plain | {"runs": runs},
        ),
        Row(task={"network": "B", "asks": "budgets", "shares": [0.8]}, result={"failed": "ValueError: why"}),
        Row(task={"network": "A", "asks": "checkpointing"}, result=beside),
        Row(task={"network": "A", "asks": "worlds", "worlds": [2, 64]}, result={"2": world, "64": short}),
        Row(
            task={"network": "A", "asks": "ranks", "ranks": 2}, result={"plain_measured": MIB, "measured": 1}
        ),
    ]
    said = EXPERIMENT.markdown(Results(experiment="fsdp", rows=tuple(rows)))
    assert "| A | plain FSDP2 | 12.00 MiB | 10.00 MiB | +20.00% |  |  |  |" in said
    assert "| A | 80%: 8.00 MiB | 6.00 MiB | 5.00 MiB | +20.00% | yes | 12.5% | yes |" in said
    assert "| A | least: 8.00 MiB | 6.00 MiB | 5.00 MiB | +20.00% | **no** | 12.5% | yes |" in said
    assert "| A | 50% | needs 7.00 MiB |  |  |  |  |  |" in said
    assert "Within the budget: 1 of 2 runs." in said
    assert "| A | 3.00 MiB | 4.00 MiB | 30.0% | 3.00 MiB | 10.0% | 0.33 | 2.00 MiB |" in said
    assert "| A | 2 | 9.00 MiB | 1.00 MiB | 4.00 MiB | 1 B | 25.0% |" in said
    assert "| A | 64 | 9.00 MiB |  | needs 8.00 MiB |  |  |" in said
    assert "- B, budgets: ValueError: why" in said


def test_plans_keep_to_the_peak_and_to_the_cost_of_checkpointing(printed) -> None:
    task = {"network": "MLP", "asks": "checkpointing", "ranks": 2}
    found = printed(f"""
import json
from steps.torch_fsdp import measure
if __name__ == "__main__":
    print(json.dumps(measure({task})))
""")
    assert found["at_their_peak"]["predicted"] <= found["theirs_predicted"]
    assert found["at_their_cost"]["overhead"] <= found["theirs_overhead"]

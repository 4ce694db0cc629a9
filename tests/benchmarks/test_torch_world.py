"""Habits of training loops and architectures become tables; the meter and the comparison of a tiny run."""

from __future__ import annotations

import pytest

from evaluation.experiment import Experiment
from evaluation.results import Results, Row, key_of
from evaluation.torch_world import DOORS, EXPERIMENTS, HABITS, VARIES, WORLD
from steps.process import LEAST, measured
from steps.varies import fails

OURS = {
    "plain_peak": 200 << 20,
    "peak": 99 << 20,
    "budget": 100 << 20,
    "expected": 100 << 20,
    "difference": 0.0,
}
WITHIN = {"budget": 100, "peak": 90, "difference": 0.0, "warned": []}


@pytest.mark.parametrize("one", EXPERIMENTS, ids=lambda one: one.name)
def test_tasks_differ_and_a_quick_run_asks_fewer(one: Experiment) -> None:
    full, quick = (list(map(key_of, one.tasks(few))) for few in (False, True))
    assert len(set(full)) == len(full) > len(set(quick)) == len(quick) > 0


def test_there_are_twenty_architectures_and_forty_habits_at_least() -> None:
    assert len({task["network"] for task in WORLD.tasks(False)}) >= 20
    assert len({task["habit"] for task in HABITS.tasks(False)}) >= 40


def test_every_answer_of_a_habit_has_a_cell_and_every_refusal_its_message() -> None:
    answers = (
        ("equal bits", WITHIN),
        ("close (1e-07)", WITHIN | {"difference": 1e-7}),
        ("other results (1e-01)", WITHIN | {"difference": 0.1}),
        ("over the budget (+10.0%)", WITHIN | {"peak": 110}),
        ("over the budget, with a warning (+10.0%)", WITHIN | {"peak": 110, "warned": ["budget"]}),
        (
            "warned of, or refused with strict=True (+10.0%)",
            WITHIN | {"peak": 110, "warned": ["budget"], "strict": "UnsupportedModelError: move it out"},
        ),
        ("refused", {"refused": "UnsupportedModelError: move it out"}),
        ("failed", {"failed": "RuntimeError: why"}),
    )
    for cell, answer in answers:
        task = {"habit": "a habit", "group": "the loop", "doors": list(DOORS)}
        row = Row(task=task, result=dict.fromkeys(DOORS, WITHIN) | {"compile": answer})
        said = HABITS.markdown(Results(experiment=HABITS.name, rows=(row,)))
        assert f"| a habit | equal bits | {cell} | equal bits |" in said
        assert ("a habit (compile): `UnsupportedModelError: move it out`" in said) == ("refused" in cell)


def test_the_table_of_architectures_counts_what_is_within_the_budget_and_below_checkpointing() -> None:
    rows = [
        Row(task={"network": "ViT", "method": "checkmate", "share": LEAST}, result=OURS | {"overhead": 0.1}),
        Row(
            task={"network": "ViT", "method": "own", "share": None},
            result=OURS | {"budget": None, "peak": 120 << 20},
        ),
        Row(task={"network": "GCN", "method": "checkmate", "share": 0.5}, result=OURS | {"peak": 101 << 20}),
        Row(
            task={"network": "GIN", "method": "checkmate", "share": 0.5}, result={"failed": "Infeasible: 60%"}
        ),
    ]
    said = WORLD.markdown(Results(experiment=WORLD.name, rows=tuple(rows)))
    assert "within the budget in 1 of 2 rows" in said
    assert "for 1 of 1 architectures" in said
    assert "| ViT | least budget | 100.0 | 100.0 | 99.0 | 50% | equal | +10.0% |" in said
    assert "- GIN, 50% of plain: `Infeasible: 60%`" in said


def test_a_habit_has_the_bits_of_plain_training_within_the_budget() -> None:
    row = measured(
        "torch_habit", {"habit": "clip_grad_norm_", "doors": ["compile"]}
    )  # all tensors are counted
    assert row["compile"]["difference"] == 0.0
    assert row["compile"]["peak"] <= row["compile"]["budget"] < row["plain_peak"]


VARYING = {
    "budget": "70%",
    "plain": [100, 100, 100, 100, 110, 100],
    "bounds": [70, 70, 70, 70, 77, 77],
    "peaks": [100, 70, 70, 70, 77, 77],
    "planned": [0, 1, 4],
    "planning_s": 20.0,
    "difference": 0.0,
    "warned": [],
}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, []),
        ({"planned": [0, 3]}, ["new plans in 1 later steps"]),
        ({"planned": [0, 5]}, []),  # a change that the loop announces
        ({"planning_s": 61.0}, ["61 s of planning"]),
        ({"peaks": [110, 70, 70, 70, 77, 77]}, ["first step +10% over plain"]),
        ({"peaks": [100, 70, 77, 70, 77, 77]}, ["1 steps over the budget, +10.0%"]),
        ({"difference": 0.06}, ["results differ by 6e-02"]),
    ],
)
def test_a_loop_whose_steps_vary_holds_unless_one_check_fails(
    change: dict[str, object], why: list[str]
) -> None:
    result = VARYING | change
    assert fails(result, changes=[5]) == why
    row = Row(task={"habit": "a loop"}, result=result | {"fails": why, "warned": ["too small"]})
    said = VARIES.markdown(Results(experiment=VARIES.name, rows=(row,)))
    assert f"{int(not why)} of 1 loops hold." in said
    assert f"| {'no: ' + why[0] if why else 'yes'} |" in said
    assert "- a loop: `too small`" in said


def test_a_loop_whose_temperature_decreases_holds() -> None:
    """In a process of its own: all tensors of a process are counted."""
    row = measured("torch_varies", {"habit": "a temperature that decreases in each step"})
    assert row["fails"] == []


TINY = """
import json
from zoo.habits.habit import batch, mlp
from steps import torch_world
from steps.process import LEAST
from zoo.torch_world import ARCHITECTURES, Architecture

inputs = {"input": batch()[0]}
mean_square = lambda y: y.square().mean()
ARCHITECTURES["tiny"] = Architecture(library="none", make=lambda: (mlp(), inputs, mean_square))
task = {"network": "tiny", "method": "checkmate", "share": LEAST}
print(json.dumps(torch_world.measure(task | {"cost_model": "flops", "time_limit": 2.0, "time": False})))
"""


def test_an_architecture_trains_within_its_least_budget(printed) -> None:
    """In a process of its own: all tensors of a process are counted."""
    row = printed(TINY)
    assert row["difference"] == 0.0
    assert row["peak"] <= row["budget"] < row["plain_peak"]

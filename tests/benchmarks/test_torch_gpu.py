"""Ways to train networks on a GPU become a table; the ways themselves are tried on the CPU."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import torch_gpu
from evaluation.results import Results, Row
from evaluation.torch_gpu import EXPERIMENT, SHORT_WAYS, goals, recorded, within, without_recorded
from steps.allocator_trace import columns, peak_of
from steps.process import SKIPPED

GIB, MIB = 2**30, 2**20


def test_the_table_has_a_line_for_each_way() -> None:
    plain = {"peak": 4 * GIB, "live": 4 * GIB}
    ours = {"peak": 2 * GIB, "live": 2 * GIB - MIB, "budget": 2 * GIB, "overhead": 0.1, "step_s": 0.05}
    ways = {
        "own": {"peak": 3 * GIB, "difference": 0.0},
        "enable 100%": {
            "peak": 4 * GIB,
            "of": "a.tracked",
            "difference": None,
            "noise": 0.0,
            "over_aot_eager": None,
        },
        "enable own": ours | {"difference": 1e-3, "noise": 1e-3, "over_aot_eager": 1e-3},
        "enable 60%": ours | {"difference": 1e-3, "noise": 0.0, "over_aot_eager": 0.0},
        "enable 50%": {"failed": "InfeasibleBudgetError: why", "needs": 3 * GIB},
        "compile_step least": {"failed": "ValueError: why"},
    }
    row = Row(task={"network": "A", "ways": list(ways)}, result={"plain": plain, **ways})
    failed = Row(task={"network": "B", "ways": []}, result={"failed": "RuntimeError: why"})
    said = EXPERIMENT.markdown(Results(experiment=EXPERIMENT.name, rows=(row, failed)))
    assert "| A | plain | 4.00 | 100% |  |  |  |  |" in said
    assert "| A | its own checkpoints | 3.00 | 75% |  |  | equal bits |  |" in said
    assert "| A | enable, 100% | 4.00 | 100% |  |  | another tracked |  |" in said
    assert "| A | enable, their peak | 2.00 | 50% | -1.00 | +10.0% | as plain from itself | 50.0 |" in said
    assert "| A | enable, 60% | 2.00 | 50% | -1.00 | +10.0% | bits of aot_eager | 50.0 |" in said
    assert "| A | enable, 50% | infeasible |" in said
    assert "| A | compile_step, least | failed |" in said
    assert "- B: RuntimeError: why" in said


def test_a_quick_run_begins_with_what_has_a_goal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    quick, whole = EXPERIMENT.tasks(True), EXPERIMENT.tasks(False)
    assert [(task["network"], task.get("n")) for task in quick[:2]] == [("ResNet-50", 8), ("Swin-T", 8)]
    assert len(quick) == 2 * len(whole)
    assert not any(task["bits"] for task in quick)
    for task in quick[2 : 2 + len(whole)]:
        assert {*SHORT_WAYS} <= {*task["ways"]}
        assert {*task["record"]} <= {"plain", *task["ways"]}


def test_what_has_no_time_is_skipped_and_tried_again_next_time() -> None:
    within(0.0)
    try:
        with pytest.raises(RuntimeError, match="skipped: the time of this run is used up"):
            EXPERIMENT.measure({"network": "GPT-2"})
    finally:
        within(math.inf)


def test_a_measurement_ends_with_the_time_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(
        "evaluation.torch_gpu.measured", lambda _, task, *, limit_s: given.append((task, limit_s)) or {}
    )
    EXPERIMENT.measure({"network": "GPT-2"})
    within(100.0)
    try:
        EXPERIMENT.measure({"network": "GPT-2"})
    finally:
        within(math.inf)
    (free, longest), (hurried, left) = given
    assert "left_s" not in free
    assert hurried["left_s"] == left <= 100.0 < longest


def _row(network: str, n: int | None = None, **ways: dict[str, Any]) -> Row:
    task = {"network": network, "ways": list(ways)} | ({} if n is None else {"n": n})
    return Row(task=task, result={"plain": {"peak": GIB, "step_s": 1.0}, **ways})


def test_each_figure_is_beside_its_goal() -> None:
    rows = (
        _row(
            "ResNet-50",
            **{
                "own": {"step_s": 1.5},
                "enable own": {"step_s": 1.4},
                "enable 100%": {"step_s": 1.06},
                "compile_step 60% graph": {"step_s": 1.0, "overhead": 0.06},
            },
        ),
        _row(
            "GPT-2",
            **{
                "own": {"step_s": 1.5},
                "enable own": {"failed": SKIPPED},
                "enable 100%": {"step_s": 1.05},
                "compile_step 60% graph": {"step_s": 2.0, "overhead": 0.07},
            },
        ),
        _row("ResNet-50", 8, **{"compile_step 60% graph": {"step_s": 0.71, "overhead": 0.05}}),
        _row("GPT-2", 8, **{"compile_step 60% graph": {"step_s": 0.71, "overhead": 0.05}}),
    )
    said = goals(Results(experiment=EXPERIMENT.name, rows=rows)).splitlines()[2:]
    assert said == [
        "| ResNet-50 | enable at 100% / plain | 1.05 | 1.06 | no |",
        "| ResNet-50 | enable / own checkpoints, their peak | 1.00 | 0.93 | yes |",
        "| ResNet-50 | captured at 60% / plain | 1.00 | 1.00 | yes |",
        "| GPT-2 | enable at 100% / plain | 1.05 | 1.05 | yes |",
        f"| GPT-2 | enable / own checkpoints, their peak | 1.00 | {SKIPPED} |  |",
        "| ResNet-50, batch 8 | captured at 60% / plain, little work | 0.70 | 0.71 | no |",
        "| GPT-2, batch 8 | captured at 60% / plain | 1.00 | 0.71 | yes |",
    ]


def test_what_was_recorded_is_kept_apart() -> None:
    trace = {"allocations": {"actions": "af"}, "ops": {"a": [1.0, 0]}}
    row = _row("A", **{"enable own": {"step_s": 1.0, "recorded": trace}})
    results = Results(experiment=EXPERIMENT.name, rows=(row,))
    assert recorded(results) == [{"network": "A", "n": None, "way": "enable own", **trace}]
    short = without_recorded(results)
    assert recorded(short) == []
    assert short.rows[0]["enable own"] == {"step_s": 1.0}


def test_rows_of_earlier_runs_stay(tmp_path: Path) -> None:
    file = tmp_path / "recorded.json"
    torch_gpu._keep([{"network": "A", "n": None, "way": "plain", "ops": {}}], file, [])
    torch_gpu._keep(
        [{"network": n, "n": None, "way": "plain", "ops": {"x": [1.0, 0]}} for n in "AB"], file, []
    )
    torch_gpu._keep([], file, [])
    rows = json.loads(file.read_text())["rows"]
    assert [(row["network"], row["ops"]) for row in rows] == [(n, {"x": [1.0, 0]}) for n in "AB"]


def test_the_time_of_a_run_is_an_option(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: list[object] = []
    monkeypatch.setattr(torch_gpu, "within", given.append)
    monkeypatch.setattr(torch_gpu.evaluate, "main", lambda arguments, _: given.append(arguments) or 0)
    folder = str(tmp_path)
    assert torch_gpu.main(["--quick", "-o", folder]) == 0
    assert torch_gpu.main(["--quick", "--seconds", "90", "-o", folder]) == 0
    assert torch_gpu.main(["-o", folder]) == 0
    quick = ["--quick", "-o", folder]
    assert given == [torch_gpu.QUICK_S, quick, 90.0, quick, ["-o", folder]]


@given(st.lists(st.tuples(st.sampled_from(["alloc", "free_completed", "other"]), st.integers(1, 99))))
def test_columns_have_every_event_and_the_peak(events: list[tuple[str, int]]) -> None:
    found = columns([{"action": a, "addr": 512 + n, "size": n} for a, n in events])
    assert len(found["actions"]) == len(found["addresses"]) == len(found["sizes"]) == len(events)
    assert min(found["addresses"], default=0) == 0
    held = [0]
    for action, size in events:
        held.append(held[-1] + {"alloc": size, "free_completed": -size}.get(action, 0))
    assert peak_of({"before": 7, **found}) == 7 + max(held)


TINY = """
import json
from steps import torch_gpu
from zoo.torch_sizes import NETWORKS, language

sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 30000}
NETWORKS["tiny"] = language("AutoModelForCausalLM", "gpt2", 2, 64, **sizes)
ways = ["own", "enable 97%", "compile_step least", "enable 1%", "compile_step 97% graph", "enable 97% masked"]
settings = {"cost_model": "flops", "time_limit": 2, "spend_s": 0.01, "bits": True, "record": ["enable 97%"]}
task = {"network": "tiny", "device": "cpu", "ways": ways} | settings
found = torch_gpu.measure(task)
found["in no time"] = torch_gpu.measure(task | {"n": 1, "left_s": 0, "ways": ["own", "enable 97%"]})
print(json.dumps(found))
"""


def test_each_way_is_measured_and_what_fails_is_a_row(printed) -> None:
    found = printed(TINY)
    for way in ("enable 97%", "compile_step least"):
        assert found[way]["live"] <= found[way]["budget"] < found["plain"]["peak"]
    assert found["own"]["difference"] == 0
    assert found["enable 97%"]["over_aot_eager"] == 0
    assert "runs on a CPU" in found["compile_step 97% graph"]["failed"]
    assert found["enable 1%"]["failed"].startswith("InfeasibleBudgetError")
    assert found["enable 97% masked"]["expected"] >= found["enable 97%"]["expected"]
    assert len(found["enable 97%"]["recorded"]["ops"]) == found["enable 97%"]["ops"]
    hurried = found["in no time"]
    assert hurried["plain"]["peak"] < found["plain"]["peak"]
    assert hurried["own"]["failed"] == hurried["enable 97%"]["failed"] == SKIPPED

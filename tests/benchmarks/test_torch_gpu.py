"""Ways to train networks on a GPU become a table; the ways themselves are tried on the CPU."""

from __future__ import annotations

import pytest

from evaluation.results import Results, Row
from evaluation.torch_gpu import EXPERIMENT

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


def test_a_quick_run_compares_steps_with_and_without_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    quick, whole = EXPERIMENT.tasks(True), EXPERIMENT.tasks(False)
    assert len(quick) == len(whole)
    for task in quick:
        assert {"compile_step 60%", "compile_step 60% graph"} <= {*task["ways"]}
        assert not task["bits"]


TINY = """
import json
from steps import torch_gpu
from zoo.torch_sizes import NETWORKS, language

sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 30000}
NETWORKS["tiny"] = language("AutoModelForCausalLM", "gpt2", 2, 64, **sizes)
ways = ["own", "enable 97%", "compile_step least", "enable 1%", "compile_step 97% graph"]
settings = {"cost_model": "flops", "time_limit": 2, "spend_s": 0.01, "bits": True}
print(json.dumps(torch_gpu.measure({"network": "tiny", "device": "cpu", "ways": ways} | settings)))
"""


def test_each_way_is_measured_and_what_fails_is_a_row(printed) -> None:
    found = printed(TINY)
    for way in ("enable 97%", "compile_step least"):
        assert found[way]["live"] <= found[way]["budget"] < found["plain"]["peak"]
    assert found["own"]["difference"] == 0
    assert found["enable 97%"]["over_aot_eager"] == 0
    assert "runs on a CPU" in found["compile_step 97% graph"]["failed"]
    assert found["enable 1%"]["failed"].startswith("InfeasibleBudgetError")

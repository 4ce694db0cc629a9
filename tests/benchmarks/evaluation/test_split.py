"""Rows of ops in pieces become tables and a picture; what is missed is said."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from evaluation.experiment import Experiment
from evaluation.results import Results, Row, key_of
from evaluation.split import EXPERIMENT as EXECUTED
from evaluation.split_predicted import EXPERIMENT as PREDICTED

MIB = 2**20
FOUND = {
    "plain_peak": 200 * MIB,
    "budget": 60 * MIB,
    "expected": 59 * MIB,
    "peak": 59 * MIB,
    "pieces": [8, 8, 4],
    "gradient_error": 2e-7,
    "time_overhead": 0.07,
}


@pytest.mark.parametrize("one", [EXECUTED, PREDICTED], ids=lambda one: one.name)
def test_tasks_differ_and_a_quick_run_asks_fewer(one: Experiment) -> None:
    full, quick = (list(map(key_of, one.tasks(few))) for few in (False, True))
    assert len(set(quick)) == len(quick)
    assert len(set(full)) == len(full)
    assert 0 < len(quick) < len(full)


def test_the_table_counts_peaks_and_says_what_is_impossible() -> None:
    rows = (
        _row("GPT-2-like", "compile", 0.3, FOUND),
        _row("GPT-2-like", "compile", 0.4, FOUND | {"peak": 61 * MIB}),
        _row("GPT-2-like", "compile", 1.0, FOUND | {"pieces": [], "gradient_error": 0.0}),
        _row("ViT-like", "compile", 0.2, {"plain_peak": 200 * MIB, "budget": 40 * MIB, "needs": 50 * MIB}),
        _row("U-Net", "compile", 0.2, {"failed": "KeyError: why"}),
    )
    said = EXECUTED.markdown(Results(experiment=EXECUTED.name, rows=rows))
    assert "within the budget in 2 of 3 rows, and within 1 % of the expected one in 2." in said
    assert "at most 2e-07; of the 1 rows in which nothing is cut, 1 are equal to the bit" in said
    assert "at 30 % of plain, by compile: +7.0% time (the aim: at most +12%)" in said
    assert "No schedule was found for ViT-like at 20%." in said
    assert "| GPT-2-like | compile 30% | 60.0 | 59.0 | 59.0 | 8, 4 | +7.0% | 2e-07 |" in said
    assert "| ViT-like | compile 20% | 40.0 |  | needs 25% |  |  |  |" in said
    assert "- U-Net, compile 20%: KeyError: why" in said


def test_ours_is_compared_within_the_peak_of_fixed_pieces() -> None:
    theirs = {"their_peak": 60 * MIB, "their_time_overhead": 0.2}
    rows = (
        _row("A", "chunks", None, FOUND | theirs | {"against": -0.1}),
        _row("B", "chunks", None, FOUND | theirs | {"against": 0.1}),
        _row("C", "linear_cross_entropy", None, {"failed": "ValueError: it has no soft-capping"}),
    )
    said = EXECUTED.markdown(Results(experiment=EXECUTED.name, rows=rows))
    assert "ours takes less time in 1 of 2 rows" in said
    assert "| A | 256 tokens | 60.0 | +20.0% | 59.0 | -10.0% | 2e-07 |" in said
    assert "- C, linear_cross_entropy: ValueError: it has no soft-capping" in said


def test_the_picture_has_a_panel_for_each_network_within_a_budget() -> None:
    pytest.importorskip("matplotlib")
    theirs = {"their_peak": 60 * MIB, "their_time_overhead": 0.2}
    rows = (
        _row("A", "compile", 0.3, FOUND),
        _row("A", "chunks", None, FOUND | theirs),
        _row("B", "compile", 0.3, {"needs": 1}),
    )
    figure = EXECUTED.draw(Results(experiment=EXECUTED.name, rows=rows))
    assert figure is not None
    assert [axes.get_title() for axes in figure.axes] == ["A"]
    assert [len(line.get_xdata()) for line in figure.axes[0].lines] == [1, 1]


def test_predictions_are_beside_the_prototype_and_numbers_tried_by_hand() -> None:
    cells = [_cell(0.6, False, 0.2), _cell(0.6, "auto", 0.012, [16]), _cell(0.5, "auto", 0.018, [8])]
    hand = [_cell(0.5, 1, None), _cell(0.5, 4, 0.019), _cell(0.5, 8, 0.018)]
    result = {"cells": cells, "least": {"False": 0.53, "auto": 0.06}}
    rows = (
        Row(task={"model": "GPT-2", "way": "step"}, result=result),
        Row(task={"model": "GPT-2", "way": "step", "counts": [1, 4, 8]}, result={"by_hand": hand}),
    )
    said = PREDICTED.markdown(Results(experiment=PREDICTED.name, rows=rows))
    assert "lower with pieces for 1 of 1 rows. In 1 of the 2 cells of the prototype, ours costs" in said
    assert "in 1 of 1 cells, and within 0.5 % of the step in 1." in said
    assert "| GPT-2, whole step: whole | 53.0% | +20.0% | – |" in said
    assert "| GPT-2, whole step: in pieces | 6.0% | +1.2% (16) | +1.8% (8) |" in said
    assert "| the prototype, in pieces | 5.7% | +0.5% | +1.4% |" in said
    assert "| 50% | +1.8% | – | +1.9% | +1.8% |" in said
    pytest.importorskip("matplotlib")
    figure = PREDICTED.draw(Results(experiment=PREDICTED.name, rows=rows))
    assert figure is not None
    assert [axes.get_title() for axes in figure.axes] == ["GPT-2, whole step"]
    assert [len(line.get_xdata()) for line in figure.axes[0].lines] == [2, 1, 6]


TINY = """
import json, torch
from steps import torch_split
from zoo import torch_vocabularies as zoo

config = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 20000, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
          "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 1}
tiny = zoo.Language(auto="AutoModelForCausalLM", kind="gpt2", config=config, shape=(1, 600))
torch_split.LANGUAGE = {"tiny": tiny}
task = {"network": "tiny", "time_limit": 1.0, "spend_s": 0.0}
print(json.dumps([torch_split.measure(task | {"method": method, "share": 0.4}) for method in METHODS]))
"""


@pytest.mark.filterwarnings("ignore")
def test_a_network_runs_in_pieces_within_the_budget_as_fixed_ones_do(printed) -> None:
    """In a process of its own: all tensors of a process are counted."""
    pytest.importorskip("transformers")
    ours, whole, chunks = printed(TINY.replace("METHODS", '("compile", "step", "chunks")'))
    for row in (ours, whole, chunks):
        assert row["peak"] <= row["budget"]
        assert row["expected"] == pytest.approx(row["peak"], rel=0.01)
    assert ours["pieces"]
    assert whole["pieces"]
    assert ours["gradient_error"] < 1e-5
    assert whole["parameter_error"] < 1e-5
    assert chunks["their_gradient_error"] < 1e-5
    assert chunks["their_peak"] < chunks["plain_peak"]


def _row(network: str, method: str, share: float | None, result: dict[str, object]) -> Row:
    return Row(task={"network": network, "method": method, "share": share}, result=result)


def _cell(
    share: float, split: object, overhead: float | None, pieces: Sequence[int] = ()
) -> dict[str, object]:
    return {"share": share, "split": split, "overhead": overhead, "pieces": [*pieces]}

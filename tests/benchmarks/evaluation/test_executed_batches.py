"""The largest batch that trains is found by trials; only a lack of memory or of FLOPs is a failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation import batches_picture, executed_batches
from evaluation.executed_batches import EXPERIMENTS, METHODS, largest
from evaluation.experiment import Experiment
from evaluation.largest_batch import PUBLISHED
from evaluation.results import Results, Row, key_of

TORCH = EXPERIMENTS[1]


@given(most=st.integers(0, 5000), first=st.integers(1, 5000), precision=st.sampled_from([0.01, 0.025, 0.5]))
def test_it_is_found_from_any_start_to_the_precision(most: int, first: int, precision: float) -> None:
    tried: list[int] = []

    def step(batch: int) -> dict[str, Any]:
        tried.append(batch)
        return {"loss": float(batch)} if batch <= most else {"failed": "out of memory"}

    found = largest(step, first=first, precision=precision)
    assert found["batch"] <= most < min(map(int, found["failures"]))
    assert min(map(int, found["failures"])) - found["batch"] <= max(1, precision * found["batch"])
    assert found.get("loss", 0.0) == found["batch"], "the facts are those of the largest"
    assert len(set(tried)) == len(tried), "no batch is tried twice"


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any] | Exception], dict[str, Any]]:
    """What a process answers ↦ what the search makes of it."""

    def tried(answer: dict[str, Any] | Exception) -> dict[str, Any]:
        def measured(*_: object, **__: object) -> dict[str, Any]:
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(executed_batches, "measured", measured)
        return executed_batches._tried("torch_batch", {"batch": 7, "limit": 100})

    return tried


def test_only_a_lack_of_memory_or_of_flops_is_a_failure(answers: Any) -> None:
    assert answers({"loss": 1.0}) == {"loss": 1.0}
    assert answers({"cost": 3.0, "overhead": 0.5})["failed"].startswith("costs +50.0%")
    assert answers({"failed": "InfeasibleBudgetError: no"}) == {"failed": "refused", "share": 0.0}
    assert answers({"failed": "InfeasibleBudgetError: no", "needs": 125 << 20})["share"] == 1.25
    assert answers({"failed": "ResourceExhaustedError: no"}) == {"failed": "out of memory"}
    assert answers(RuntimeError("exit -11: Fatal")) == {"failed": "out of memory"}
    for fault in ({"failed": "TypeError: no"}, RuntimeError("no answer within 9 s"), RuntimeError("exit 1:")):
        with pytest.raises(RuntimeError, match="batch 7"):
            answers(fault)


def results_with(missing: str = "") -> Results:
    batches = {"stock": 100, "remat": 150, "ours": 300}
    rows = [
        Row(
            task={"network": network, "method": method, "limit": 1024},
            result={"batch": batch, "failures": {str(batch + 2): "out of memory", "400": "refused"}}
            | ({"overhead": 0.1, "most_overhead": 0.33} if method == "ours" else {}),
        )
        for network in ("mobilenet", "vgg19")
        for method, batch in batches.items()
        if method != missing
    ]
    losses = Row(task={"network": "vgg19", "method": "losses"}, result={"stock": 2.0, "ours": 2.002})
    return Results(experiment="executed-batches-tf", rows=(*rows, losses))


def test_the_page_has_the_papers_ratios_beside_ours() -> None:
    lines = TORCH.markdown(results_with()).splitlines()
    (vgg,) = [line for line in lines if line.startswith("| VGG19 |")]
    assert "| 100 (102: out of memory) | 150 (152: out of memory) | 300 (302: out of memory) |" in vgg
    assert "| 1.2× / 1.5× | 1.7× / 3.0× | +10% of +33% | 1e-03 |" in vgg
    (mobilenet,) = [line for line in lines if line.startswith("| MobileNet |")]
    assert "| 2.1× / 1.5× | 5.1× / 3.0× | +10% of +33% | – |" in mobilenet
    assert "| – | 1.2× / 1.5× | 1.7× / – |" in TORCH.markdown(results_with(missing="ours"))


def test_the_picture_has_a_panel_for_each_framework_in_the_papers_order() -> None:
    pytest.importorskip("matplotlib")
    figure = batches_picture.draw(results_with(), results_with(missing="remat"))
    assert [axes.get_title() for axes in figure.axes] == ["TensorFlow", "PyTorch"]
    for axes in figure.axes:
        assert [text.get_text() for text in axes.get_xticklabels()] == ["VGG19", "MobileNet"]


@pytest.mark.parametrize("one", EXPERIMENTS, ids=lambda one: one.name)
def test_all_networks_are_tried_and_a_quick_run_asks_fewer(one: Experiment) -> None:
    full, quick = (list(map(key_of, one.tasks(few))) for few in (False, True))
    assert len(set(full)) == len(full) > len(set(quick)) == len(quick) > 0
    asked = {(task["network"], task["method"]) for task in one.tasks(False)}
    assert asked == {(network, method) for network in PUBLISHED for method in (*METHODS, "losses")}


def test_a_batch_that_pytorch_has_no_memory_for_trains_at_less_than_one_more_forward_pass() -> None:
    pytest.importorskip("torch")
    task = {"network": "mobilenet", "side": 64, "batch": 30, "time_limit": 1.0, "limit": 128}
    stock, ours = (
        executed_batches._tried("torch_batch", task | {"method": method}) for method in ("stock", "ours")
    )
    assert stock == {"failed": "out of memory"}
    assert ours["cost"] <= ours["most_cost"]
    assert ours["loss"] > 0

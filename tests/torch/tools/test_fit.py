"""How much memory training takes, predicted without memory, against the allocator."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Lock
from types import ModuleType

import click
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn
from torch.optim import Optimizer

from checkmate import BudgetError, CheckmateError, CostError, UnsupportedModelError
from checkmate.errors import FormatError, MissingDistributionError
from checkmate.framework import ProgramError
from checkmate.units import format_bytes
from checkmate_torch import Fit, FitTable, enable, memory_meter
from checkmate_torch import fit as fit_slowly
from checkmate_torch.tools.fit.command import register
from checkmate_torch.tools.fit.hugging_face import hugging_face_factory
from checkmate_torch.tools.fit.optimizers import named_optimizer, settings_in, update_bytes

TOLERANCE = 0.02
LOCK = Lock()
fit = partial(fit_slowly, time_limit=0.1)
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


class Wide(nn.Module):
    """Parameters outweigh activations, so that the update has the peak; computes its loss."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, width), nn.GELU(), nn.Dropout(0.1), nn.Linear(width, 64))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).square().mean()  # type: ignore[no-any-return]


def wide(batch: int) -> tuple[nn.Module, Tensor]:
    return Wide(), torch.zeros(batch, 64)


def read_data(batch: int) -> tuple[nn.Module, Tensor, Callable[[Tensor], Tensor]]:
    """A loss of its own; the code reads a number from a tensor, and recomputation is worth it."""

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(6))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x).relu().tanh()
            return x

    return Deep(), torch.zeros(batch, 32), lambda output: output.square().mean()


class Words(nn.Module):
    """A language model whose logits outweigh all else; computes its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Embedding(2048, 16), nn.Linear(16, 16), nn.GELU())
        self.head = nn.Linear(16, 2048, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.head(self.body(words)), words)


def words(batch: int) -> tuple[nn.Module, Tensor]:
    return Words(), torch.zeros(batch, dtype=torch.long)


def trained(model: nn.Module, loss_of: Callable[[], Tensor], optimizer: Optimizer, *held: object) -> int:
    """The allocator's peak of the third training step."""

    def step() -> None:
        loss_of().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    step()
    step()
    with memory_meter(model, optimizer, *held) as meter:
        step()
    return meter.peak


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    return path


@pytest.fixture
def cli() -> click.Group:
    group = click.Group()
    register(group)
    return group


@pytest.mark.parametrize(("batch", "optimizer"), [(8, "adamw"), (8, "adafactor"), (512, "sgd,momentum=0.9")])
def test_the_plain_peak_is_the_allocators(batch: int, optimizer: str) -> None:
    (cell,) = fit(wide, [batch], optimizer=optimizer)
    model, x = wide(batch)
    measured = trained(model, lambda: model(x), named_optimizer(optimizer)(model.parameters()), x)
    assert cell.plain_peak == pytest.approx(measured, rel=TOLERANCE)
    assert cell.update_peak <= cell.plain_peak


def test_a_model_of_transformers_runs_the_code_that_its_eager_step_runs(config: Path) -> None:
    """While it is captured, or on fake tensors, it builds masks."""
    factory = hugging_face_factory(config)
    cell = fit(factory, [4], [64], optimizer="sgd")[4, 64]
    from transformers import LlamaConfig, LlamaForCausalLM

    model, ids = LlamaForCausalLM(LlamaConfig(**LLAMA, use_cache=False)), torch.zeros(4, 64, dtype=torch.long)
    labels = ids.clone()

    def loss() -> Tensor:
        return model(input_ids=ids, labels=labels).loss  # type: ignore[no-any-return]

    measured = trained(model, loss, torch.optim.SGD(model.parameters()), ids, labels)
    assert cell.plain_peak == pytest.approx(measured, rel=TOLERANCE)


def test_the_least_peak_is_trained_within() -> None:
    cell = fit_slowly(read_data, [1024])[1024]  # 0.1 s is too short on some machines
    assert cell.least_peak is not None
    assert cell.least_peak < 0.8 * cell.plain_peak
    model, x, loss = read_data(1024)
    whole = _WithLoss(model, loss)
    optimizer = torch.optim.AdamW(whole.parameters())
    enable(whole, cell.least_peak, optimizer=optimizer, cost_model="flops", cache=False)
    assert trained(whole, lambda: whole(x), optimizer, x) <= cell.least_peak


def test_in_pieces_a_step_takes_less_and_a_budget_of_that_size_is_trained_within() -> None:
    cell = fit(words, [1024], optimizer="sgd")[1024]
    assert cell.least_peak is not None
    assert cell.split_peak is not None
    assert cell.split_peak < 0.4 * cell.least_peak <= 0.4 * cell.plain_peak
    (within,) = fit(words, [1024], optimizer="sgd", budget=int(1.2 * cell.split_peak))
    assert within.fits
    assert within.verdict.startswith("fits in pieces at +")
    never = fit(words, [1024], optimizer="sgd", budget=cell.split_peak // 2)[1024]
    assert never.verdict == f"does not fit: least {format_bytes(cell.split_peak)}"
    model, x = words(1024)
    optimizer = torch.optim.SGD(model.parameters())
    enable(model, within.budget or 0, optimizer=optimizer, cost_model="flops", cache=False)
    assert trained(model, lambda: model(x), optimizer, x) <= (within.budget or 0)


@pytest.mark.parametrize("factory", [wide, read_data, words])
def test_pieces_never_need_more(factory: Callable[[int], tuple[object, ...]]) -> None:
    (cell,) = fit(factory, [64])
    assert cell.update_peak <= (cell.split_peak or 0) <= (cell.least_peak or 0) <= cell.plain_peak


class _WithLoss(nn.Module):
    def __init__(self, model: nn.Module, loss: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, x: Tensor) -> Tensor:
        return self.loss(self.model(x))


def test_a_model_that_can_not_be_captured_has_a_plain_peak() -> None:
    class Locked(Wide):
        def forward(self, x: Tensor) -> Tensor:
            with LOCK:
                return super().forward(x)

    (cell,) = fit(lambda batch: (Locked(), torch.zeros(batch, 64)), [8], budget=2**20)
    assert cell.plain_peak == fit(wide, [8])[8].plain_peak
    assert cell.least_peak is None
    assert "one graph" in cell.remark
    assert cell.verdict == "does not fit: least unknown"


def test_more_examples_take_more_and_a_verdict_says_what_they_cost() -> None:
    free = fit_slowly(read_data, [256, 512, 1024])
    assert free[256].fits is None
    assert not free[256].verdict
    small, middle, large = free
    assert small.plain_peak < middle.plain_peak < large.plain_peak
    assert (small.least_peak or 0) <= (middle.least_peak or 0) <= (large.least_peak or 0)
    (within,) = fit(read_data, [512], budget=(middle.plain_peak + (middle.least_peak or 0)) // 2)
    assert within.fits
    assert within.verdict.startswith("fits at +")
    never, always = (fit(read_data, [512], budget=n)[512] for n in (middle.update_peak, middle.plain_peak))
    assert never.fits is False
    assert never.verdict.startswith("does not fit: least ")
    assert always.verdict == "fits"


def test_a_device_of_the_table_has_a_capacity_and_libraries() -> None:
    here, there = fit(wide, [8])[8], fit(wide, [8], device="H100-80GB", budget="0.1%")[8]
    assert there.budget is not None
    assert 2**26 < there.budget < 2**27
    assert there.verdict == "fits"
    assert there.update_peak - here.update_peak >= 2**26  # of cuBLAS


def test_a_capacity_stands_for_a_device_that_the_table_lacks() -> None:
    budgets = [
        fit(wide, [8], memory="24GiB")[8].budget,
        fit(wide, [8], memory="24GiB", device="RTX4090-24GB")[8].budget,
        fit(wide, [8], memory=24 * 2**30, budget="auto")[8].budget,
    ]
    assert {*budgets} == {int(23 * 2**30 * 0.9)}
    assert fit(wide, [8], memory="24GiB", budget="50%")[8].budget == 12 * 2**30


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_plain_peak_is_that_of_this_machines_gpu() -> None:
    (cell,) = fit(lambda batch: (Wide(4096), torch.zeros(batch, 64)), [8192], device="cuda")
    model, x = Wide(4096).cuda(), torch.zeros(8192, 64, device="cuda")
    measured = trained(model, lambda: model(x), torch.optim.AdamW(model.parameters()), x)
    assert cell.plain_peak == pytest.approx(measured, rel=0.1)  # cuBLAS holds 64 MiB at most


def test_foreach_holds_a_temporary_for_each_parameter() -> None:
    parameters = [nn.Parameter(torch.zeros(256, 256)) for _ in range(8)]
    one, size = parameters[0].nbytes, sum(p.nbytes for p in parameters)
    loop, many, fused = (
        update_bytes(torch.optim.AdamW(parameters, **settings))
        for settings in ({"foreach": False}, {"foreach": True}, {"fused": True})
    )
    assert loop.state == many.state == pytest.approx(2 * size, rel=0.01)
    assert loop.workspace < 4 * one
    assert size <= many.workspace < size + one
    assert fused.workspace == 0


def test_a_dtype_is_that_of_parameters_and_inputs() -> None:
    half = fit(wide, [512], dtype=torch.bfloat16)[512]
    assert half.plain_peak < 0.6 * fit(wide, [512])[512].plain_peak


def test_tables_are_json_and_pictures(tmp_path: Path) -> None:
    table = fit(wide, [8, 16], budget="1GiB")
    assert FitTable.from_json(table.to_json()) == table
    assert json.loads(table.to_json())["cells"][1]["verdict"] == "fits"
    assert "1.00 GiB" in str(table) or "1.0 GiB" in str(table)
    table.save_picture(tmp_path / "fit.png")
    assert (tmp_path / "fit.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(KeyError):
        table[9]
    for text in (b"{}", b"[", b'{"cells": [1]}', b'{"cells": [{"batch": "x"}]}'):
        with pytest.raises(FormatError):
            FitTable.from_json(text)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: fit(wide, [8], [16]), ProgramError, "batch, sequence"),
        (lambda: fit(lambda batch: batch), ProgramError, "returned int"),
        (lambda: fit(lambda n: (nn.Linear(4, 4), torch.zeros(n, 4))), UnsupportedModelError, "scalar"),
        (lambda: fit(wide, [0]), ValueError, "positive"),
        (lambda: fit(wide, optimizer="adamww"), ValueError, "did you mean 'adamw'"),
        (lambda: fit(wide, optimizer="sgd,momentum"), ValueError, "name=value"),
        (lambda: fit(wide, optimizer="lbfgs"), BudgetError, "LBFGS"),
        (lambda: fit(wide, device="H100"), CostError, "H100-80GB"),
        (lambda: fit(wide, budget="60%"), BudgetError, "share of a device"),
        (lambda: fit(wide, memory="24"), BudgetError, "is 24 bytes"),
    ],
)
def test_mistakes_are_named(call: Callable[[], object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()


@pytest.mark.parametrize(
    ("changes", "settings", "text"),
    [
        ({"model_type": "nothing"}, {}, "unknown to transformers"),
        ({"architectures": None}, {}, "name the head"),
        ({"quantization_config": {}}, {}, "before quantization"),
        ({}, {"head": "NothingForCausalLM"}, "no model"),
        ({}, {"head": "LlamaModel"}, "inputs of LlamaModel are not known"),
    ],
)
def test_mistakes_in_a_config_are_named(
    config: Path, changes: dict[str, object], settings: dict[str, str], text: str
) -> None:
    config.write_text(json.dumps(LLAMA | changes))
    with pytest.raises(CheckmateError, match=text):
        hugging_face_factory(config, **settings)


def test_adapters_need_peft_and_known_settings(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="the settings are r, alpha"):
        hugging_face_factory(config, lora="rank=8")
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingDistributionError, match="pip install peft"):
        fit(hugging_face_factory(config, lora="r=8"), [1], [8])
    assert settings_in("r=8, targets=a+b") == {"r": 8, "targets": "a+b"}


def test_the_command_prints_a_table_or_json_and_writes_a_picture(
    cli: click.Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("test_fit_factories")
    module.wide = wide  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    asked = ["fit", "--torch", "test_fit_factories:wide", "--budget", "1GiB", "--time-limit", "0.1"]
    picture = tmp_path / "fit.svg"
    shown = CliRunner().invoke(cli, [*asked, "--output", str(picture)], catch_exceptions=False)
    assert shown.output.count("fits") == 1
    assert picture.exists()
    printed = CliRunner().invoke(cli, [*asked, "--json", "--optimizer", "none"], catch_exceptions=False)
    assert FitTable.from_json(printed.stdout)[1].fits


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "name the model"),
        (["--torch", "nothing_here:factory"], "nothing_here"),
        (["--torch", "os:nothing"], "MODULE:FACTORY"),
        (["--torch", "os:getpid", "--lora", "r=8"], "go with --hf"),
        (["--torch", "os:getpid", "--batch", "two"], "no list of whole numbers"),
    ],
)
def test_mistakes_on_the_command_line_are_named(cli: click.Group, words: list[str], text: str) -> None:
    with pytest.raises(ProgramError, match=text):
        CliRunner().invoke(cli, ["fit", *words], catch_exceptions=False, standalone_mode=False)


def test_a_cell_without_a_sequence_has_none() -> None:
    assert Fit(batch=1, plain_peak=2, least_peak=1, update_peak=1, budget=1, overhead=0.071).verdict == (
        "fits at +7.1 %"
    )

"""The judge's peaks and FLOPs against those of real steps under the same policies."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from checkmate import Schedule, solve
from checkmate_torch import (
    Judgement,
    MemoryBudget,
    PolicyError,
    judge,
    memory_meter,
    trace,
)
from checkmate_torch.policies.policy import applied, parsed
from zoo.small_torch import gpt2, resnet18

TOLERANCE = 0.02
_aten = torch.ops.aten


def _raw(name: str) -> Callable[..., int]:
    """PyTorch's formula for attention on a GPU, for the CPU's op, of which PyTorch has none."""

    def formula(*args: Any, **kwargs: Any) -> int:
        return flop_registry[getattr(_aten, name)](*args, **kwargs)  # type: ignore[no-any-return]

    formula._get_raw = True  # type: ignore[attr-defined]
    return formula


ATTENTION = {
    getattr(_aten, f"{name}_for_cpu{end}"): _raw(f"{name}{end}")
    for name in ["_scaled_dot_product_flash_attention"]
    for end in ("", "_backward")
}


class Gated(nn.Module):
    """A block of Llama: RMS norm, attention, a gated MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[0](x)
        q, k, v = (f(y).unflatten(-1, (4, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        y = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Embedding, three blocks, a head, and the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(200, 64), nn.Linear(64, 200, bias=False)
        self.layers = nn.ModuleList(Gated(64) for _ in range(3))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return functional.cross_entropy(self.head(x).flatten(0, 1), ids.flatten())


class ViT(nn.Module):
    """Patches, a token of the class, three encoder layers with dropout, the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 64, 8, 8)
        self.token = nn.Parameter(torch.zeros(1, 1, 64))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(64, 4, 128, 0.1, activation="gelu", batch_first=True) for _ in range(3)
        )
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        y = self.patches(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.token.expand(len(y), -1, -1), y], dim=1)
        for layer in self.layers:
            y = layer(y)
        return functional.cross_entropy(self.head(y[:, 0]), labels)


class Lossy(nn.Module):
    """A model with its loss, whose labels are an input."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(self.model(x), labels)


@cache
def network(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    if name == "llama":
        return Llama(), (torch.randint(200, (4, 64)),)
    if name == "vit":
        return ViT(), (torch.randn(4, 3, 64, 64), torch.randint(10, (4,)))
    if name == "gpt2":
        case = gpt2(layers=3, width=64, length=64, batch=4, vocabulary=200, dropout=0.1)
        return case.module, case.inputs
    case = resnet18(width=16, image=32, batch=8)
    assert case.targets is not None
    return Lossy(case.module), (*case.inputs, case.targets)


POLICIES = {
    "gpt2": ["blocks.*", "blocks.?/2", "blocks.? save aten.addmm.default#0,3", "blocks.?.1"],
    "llama": ["layers.?", "layers.?/2", "layers.? save *.gate :: aten.mm.default | *.q :: *.mm.default"],
    "vit": ["layers.?", "layers.?/2", "layers.? save *attention*", "layers.?.linear1,layers.?.dropout"],
    "resnet": ["model.?", "model.?/2", "model.? save aten.convolution.default", "model.?.layers.?"],
}


@cache
def judgement(name: str) -> Judgement:
    model, inputs = network(name)
    return judge(model, inputs, POLICIES[name], cost_model="flops", workspaces=True, time_limit=0)


@pytest.mark.parametrize(
    ("name", "k"), [(name, k) for name in POLICIES for k in range(len(POLICIES[name]) + 1)]
)
def test_peak_and_flops_are_those_of_the_real_step(name: str, k: int) -> None:
    model, inputs = network(name)
    policy = parsed(["plain", *POLICIES[name]][k])

    def step() -> None:
        model(*inputs).backward()

    def flops() -> int:
        model.zero_grad()
        with FlopCounterMode(display=False, custom_mapping=ATTENTION) as counter:
            step()
        return counter.get_total_flops()

    plain = flops()
    with applied(policy, model):
        again = flops() - plain
        model.zero_grad()
        gc.collect()
        with memory_meter(model, inputs) as meter:
            step()
    model.zero_grad()
    row = judgement(name)[k]
    assert row.peak == pytest.approx(meter.peak, rel=TOLERANCE)
    assert row.flops_again == again
    assert (row.overhead > 0) == (again > 0 or k > 0)


@pytest.mark.parametrize("text", ["library", "library/2", "model.layers.?"])
def test_the_checkpointing_of_a_library_is_judged(text: str) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = transformers.LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=200)
    model, ids = transformers.LlamaForCausalLM(config).train(), torch.randint(200, (4, 64))
    inputs = {"input_ids": ids, "labels": ids}
    found = judge(model, inputs, text, loss=lambda out: out.loss, cost_model="flops", time_limit=0)
    assert config.use_cache
    assert not any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
    with applied(parsed(text), model), memory_meter(model, inputs) as meter:
        model(**inputs).loss.backward()
    assert found[1].peak == pytest.approx(meter.peak, rel=TOLERANCE)
    assert found[1].peak < found[0].peak


class Own(nn.Module):
    """Layers whose library turns on its checkpointing as timm does, or as diffusers does."""

    def __init__(self) -> None:
        super().__init__()
        layers = (nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(3))
        self.layers, self.is_on = nn.ModuleList(layers), False

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            again = torch.utils.checkpoint.checkpoint
            x = again(layer, x, use_reentrant=False) if self.is_on else layer(x)
        return x.square().mean()


class LikeTimm(Own):
    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.is_on = enable


class LikeDiffusers(Own):
    def enable_gradient_checkpointing(self) -> None:
        self.is_on = True

    def disable_gradient_checkpointing(self) -> None:
        self.is_on = False


@pytest.mark.parametrize("kind", [LikeTimm, LikeDiffusers])
def test_checkpointing_that_takes_no_settings_is_judged_as_that_of_its_layers(kind: type[Own]) -> None:
    model, x, ran = kind(), torch.zeros(256, 32), torch.utils.checkpoint.checkpoint
    found = judge(model, x, ["library", "layers.?"], cost_model="flops", time_limit=0)
    assert (found[1].peak, found[1].overhead) == (found[2].peak, found[2].overhead)
    assert found[1].overhead > 0
    assert not model.is_on
    assert torch.utils.checkpoint.checkpoint is ran
    with applied(parsed("library"), model):
        assert model.is_on
    with pytest.raises(PolicyError, match="every_n_layers"):
        judge(model, x, "library/2", cost_model="flops", time_limit=0)


@pytest.mark.parametrize("name", POLICIES)
def test_what_fills_the_peak_is_the_peak(name: str) -> None:
    for row in judgement(name).rows[1:]:
        held = sum(row.held.values())
        assert held <= row.peak  # the rest is the workspace of the op
        assert held > 0.7 * row.peak


def test_a_schedule_is_judged_as_the_simulator_does() -> None:
    model, inputs = network("gpt2")
    traced = trace(model, inputs, cost_model="flops")
    solution = solve(traced.graph, "50%", time_limit=1.0, fixed_order=True)
    found = judge(model, inputs, [solution], cost_model="flops", time_limit=0.2)
    assert (found[1].peak, found[1].overhead) == (solution.peak, solution.overhead)
    best = found[1].best_overhead
    assert best is not None
    assert best <= solution.overhead + 1e-9
    assert found[1].bound <= best + 1e-9
    assert found[1].best_peak is not None
    assert found[1].best_peak <= found[1].peak
    with pytest.raises(PolicyError, match="not one of the traced graph"):
        judge(model, inputs, Schedule.from_sequence(traced.graph, [0]), cost_model="flops", time_limit=0)


def test_a_policy_is_judged_for_a_gpu_that_is_not_here() -> None:
    """Recomputations run the kernels of the device, too: otherwise they keep other tensors."""
    model, inputs = network("llama")
    found = judge(model, inputs, ["layers.?", "layers.?/2"], device="cuda:H100-80GB", time_limit=0)
    peaks = [row.peak for row in found.rows]
    assert peaks[0] > peaks[2] > peaks[1]
    assert 0 < found[2].overhead < found[1].overhead < 0.5


def test_pytorchs_own_partitioner_is_judged_on_the_same_graph() -> None:
    model, inputs = network("llama")
    budgets = [MemoryBudget(share=share) for share in (1.0, 0.5, 0.0)]
    rows = judge(model, inputs, budgets, cost_model="flops", time_limit=0).rows[1:]
    assert rows[0].overhead < rows[1].overhead < rows[2].overhead
    assert rows[0].peak > rows[1].peak  # a share of 0 may need more than one of 0.5


def test_the_best_schedules_beside_a_policy_are_no_worse() -> None:
    model, inputs = network("llama")
    found = judge(model, inputs, ["layers.?", "layers.?/2"], cost_model="flops", time_limit=0.2)
    for row in found.rows[1:]:
        assert row.best_overhead is not None
        assert row.best_peak is not None
        assert row.bound <= row.best_overhead <= row.overhead
        assert row.best_peak <= row.peak
        assert "is possible" in str(row)
    facts = found.to_dict()
    assert [each["peak"] for each in facts["policies"]] == [row.peak for row in found.rows]
    assert found["checkpoint layers.?"] is found[1]
    with pytest.raises(KeyError):
        found["no such policy"]


@torch.compiler.disable
def _outside() -> None:
    """Code that Dynamo can't capture."""


class Broken(nn.Module):
    """Code that is no graph, which eager PyTorch does not mind."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
            _outside()
        return x.sum()


def test_a_model_that_is_no_single_graph_is_judged_without_best_schedules() -> None:
    found = judge(Broken(), torch.zeros(512, 64), "layers.?", cost_model="flops")
    assert found[1].peak < found[0].peak
    assert found.frontier is None
    assert "one graph" in str(found)
    with pytest.raises(PolicyError, match="can't be traced"):
        judge(Broken(), torch.zeros(512, 64), "budget=0.5", cost_model="flops")

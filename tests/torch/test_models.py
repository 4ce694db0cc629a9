"""Common architectures: each trains the same, to the bit, within any budget, at the predicted peak.

Random weights and small shapes. Those of Hugging Face need ``transformers`` and are skipped without it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from checkmate import Problem, Solution, minimum_budget
from checkmate_torch import compile, memory_meter

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no access to the network

STEPS = 2
TOKENS = 64


@dataclass(frozen=True, kw_only=True)
class Least:
    """Answers any problem with a schedule of the least peak that a search finds."""

    def solve(self, problem: Problem) -> Solution:
        least = minimum_budget(problem.graph, solver="auto", fixed_order=True, time_limit=1.0)
        return Solution.found(problem, least.schedule, solver="least")


class Loss(nn.Module):
    """A classifier with its loss: a model that computes the loss itself, as those of Hugging Face do."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.body(x)
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


class Sum(nn.Module):
    """x + f(x), with a shortcut where the shapes differ."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut or nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.shortcut(x) + self.body(x)


class Dense(nn.Module):
    """Every layer reads all before it (Huang et al., CVPR 2017)."""

    def __init__(self, width: int, growth: int, layers: int) -> None:
        super().__init__()
        widths = range(width, width + growth * layers, growth)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(w), nn.ReLU(), nn.Conv2d(w, growth, 3, 1, 1)) for w in widths
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = [x]
        for layer in self.layers:
            seen.append(layer(torch.cat(seen, 1)))
        return torch.cat(seen, 1)


def conv(a: int, b: int, kernel: int = 1, *, act: nn.Module | None = None, **more: int) -> list[nn.Module]:
    """Convolution, batch norm, activation."""
    layers = [nn.Conv2d(a, b, kernel, padding=kernel // 2, bias=False, **more), nn.BatchNorm2d(b)]
    return layers if act is None else [*layers, act]


def bottleneck(before: int, width: int, stride: int) -> nn.Module:
    """1×1, 3×3, 1×1 around a shortcut (He et al., CVPR 2016, figure 5)."""
    act = partial(nn.ReLU, inplace=True)
    body = [*conv(before, width, act=act()), *conv(width, width, 3, stride=stride, act=act())]
    shortcut = None if before == 4 * width else nn.Sequential(*conv(before, 4 * width, stride=stride))
    return nn.Sequential(Sum(nn.Sequential(*body, *conv(width, 4 * width)), shortcut), act())


def inverted(width: int) -> nn.Module:
    """Wide in the middle, each channel convolved alone (Sandler et al., CVPR 2018)."""
    wide = 4 * width
    inside = conv(wide, wide, 3, groups=wide, act=nn.ReLU6())
    return Sum(nn.Sequential(*conv(width, wide, act=nn.ReLU6()), *inside, *conv(wide, width)))


def classifier(*layers: nn.Module, width: int) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(width, 5))
    batch = {"x": torch.randn(16, 3, 24, 24), "labels": torch.randint(5, (16,))}
    return Loss(nn.Sequential(*conv(3, 16, 3, act=nn.ReLU()), *layers, *head)), batch


def resnet50() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    return classifier(bottleneck(16, 8, 1), bottleneck(32, 8, 1), bottleneck(32, 16, 2), width=64)


def mobilenet() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    return classifier(inverted(16), *conv(16, 24, 3, stride=2, act=nn.Hardswish()), inverted(24), width=24)


def densenet() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    return classifier(Dense(16, 8, 4), *conv(48, 24), nn.AvgPool2d(2), Dense(24, 8, 3), width=48)


def hugging_face(
    model: str, config: str, *, settings: Mapping[str, object], batch: Callable[[], dict[str, torch.Tensor]]
) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    transformers = pytest.importorskip("transformers")
    module = getattr(transformers, model)(getattr(transformers, config)(**settings))
    return module.train(), batch()


def text(*, mask: bool = False) -> dict[str, torch.Tensor]:
    tokens = torch.randint(2, TOKENS, (8, 64))
    extra = {"attention_mask": torch.ones_like(tokens)} if mask else {"use_cache": False}
    return {"input_ids": tokens, "labels": tokens.clone(), **extra}


def image() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(8, 3, 64, 64), "labels": torch.randint(5, (8,))}


SHAPE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
LANGUAGE = {"vocab_size": TOKENS, "max_position_embeddings": 64, **SHAPE}
GROUPED = {**LANGUAGE, "num_key_value_heads": 1}

MODELS: dict[str, Callable[[], tuple[nn.Module, dict[str, torch.Tensor]]]] = {
    "resnet50": resnet50,
    "mobilenet": mobilenet,
    "densenet": densenet,
    "bert": partial(
        hugging_face,
        "BertForMaskedLM",
        "BertConfig",
        settings={**LANGUAGE, "attention_probs_dropout_prob": 0.0},
        batch=partial(text, mask=True),
    ),
    "gpt2": partial(
        hugging_face,
        "GPT2LMHeadModel",
        "GPT2Config",
        settings={"vocab_size": TOKENS, "n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 64},
        batch=text,
    ),
    "llama": partial(hugging_face, "LlamaForCausalLM", "LlamaConfig", settings=GROUPED, batch=text),
    "t5": partial(
        hugging_face,
        "T5ForConditionalGeneration",
        "T5Config",
        settings={"vocab_size": TOKENS, "d_model": 64, "d_kv": 32, "d_ff": 128, "num_heads": 2}
        | {"num_layers": 1, "dropout_rate": 0.0, "decoder_start_token_id": 0},
        batch=text,
    ),
    "vit": partial(
        hugging_face,
        "ViTForImageClassification",
        "ViTConfig",
        settings={"image_size": 64, "patch_size": 8, "num_labels": 5, **SHAPE}
        | {"hidden_dropout_prob": 0.1, "problem_type": "single_label_classification"},
        batch=image,
    ),
    "mixture of experts": partial(
        hugging_face,
        "MixtralForCausalLM",
        "MixtralConfig",
        settings={**GROUPED, "num_hidden_layers": 1, "num_local_experts": 4}
        | {"bos_token_id": 0, "eos_token_id": 1},
        batch=text,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Training:
    """The results of two steps: numbers, and the peak of the second."""

    seen: list[torch.Tensor]
    peak: int


WITHOUT_LOGITS = {"bert", "llama", "t5"}
"""Their peak has gradients of the logits in the plan, which no step makes, as no loss reads the logits."""


def train(module: nn.Module, batch: Mapping[str, torch.Tensor]) -> Training:
    torch.manual_seed(7)
    seen = []
    for step in range(STEPS):
        module.zero_grad()
        # The first step plans, which times ops, which can't be done inside a meter.
        with memory_meter(module, batch) if step else nullcontext() as meter:
            output = module(**batch)
            output["loss"].backward()
        seen += [v.detach() for v in (output["loss"], output["logits"])]
        seen += [p.grad.clone() for p in module.parameters() if p.grad is not None]
        del output
    peak = meter.peak if meter is not None else 0
    return Training(seen=[*seen, *module.buffers(), torch.get_rng_state()], peak=peak)


def fresh(name: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    return MODELS[name]()


@pytest.fixture(scope="module", params=MODELS)
def plain(request: pytest.FixtureRequest) -> tuple[str, Training]:
    name = request.param
    return name, train(*fresh(name))


@pytest.mark.parametrize(
    ("budget", "solver"), [("70%", "evict-belady"), ("100%", Least())], ids=["70%", "least"]
)
def test_same_bits_at_the_predicted_peak(
    plain: tuple[str, Training], budget: str, solver: str | Least
) -> None:
    name, reference = plain
    module, batch = fresh(name)
    compiled = compile(module, budget, solver=solver, loss_bytes=0, split=False)  # sums of pieces round
    run = train(compiled, batch)
    (plan,) = compiled.plans
    solution = plan.solution

    assert len(run.seen) == len(reference.seen)
    for mine, theirs in zip(run.seen, reference.seen, strict=True):
        assert torch.equal(mine, theirs)
    assert run.peak <= solution.peak <= solution.problem.budget
    assert run.peak < reference.peak
    rel = 0.07 if name in WITHOUT_LOGITS and budget == "70%" else 0.01
    assert solution.peak == pytest.approx(run.peak, rel=rel)
    assert solution.timeline.recomputes > 0

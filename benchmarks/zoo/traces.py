"""Training steps of current architectures, traced op by op: 300 to 6,000 ops each.

Most models are those of ``transformers``, with random weights; two modules here have the shapes of published
convolutional networks. Costs are from the roofline of one device: a trace is the same on every machine.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

import checkmate_torch
from checkmate import DFGraph
from zoo.torch_vocabularies import Loss

__all__ = ["TRACES", "trace"]

_COSTS = "roofline-A100-80GB"
_WORDS, _CLASSES = 1000, 100

Step = tuple[nn.Module, Mapping[str, Tensor]]
"""A model that returns its loss, and its keyword arguments."""


def trace(name: str) -> DFGraph:
    """The training step of one of :data:`TRACES`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, inputs = TRACES[name]()
    found = checkmate_torch.trace(Loss(model.train()), inputs, loss_bytes=0, cost_model=_COSTS)
    return dataclasses.replace(found.graph, name=name)


def _images(kind: str, *, batch: int = 32, **config: Any) -> Callable[[], Step]:
    """A classifier of images of 224 × 224."""

    def make() -> Step:
        made = transformers.AutoConfig.for_model(kind, num_labels=_CLASSES, **config)
        model = transformers.AutoModelForImageClassification.from_config(made)
        images, labels = torch.randn(batch, 3, 224, 224), torch.randint(_CLASSES, (batch,))
        return model, {"pixel_values": images, "labels": labels}

    return make


def _words(kind: str, *, batch: int = 16, length: int = 256, **config: Any) -> Callable[[], Step]:
    """A language model, or one that translates."""

    def make() -> Step:
        special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
        made = transformers.AutoConfig.for_model(
            kind, use_cache=False, vocab_size=_WORDS, dtype="bfloat16", **special, **config
        )
        to_words = transformers.AutoModelForCausalLM
        if made.is_encoder_decoder:
            to_words = transformers.AutoModelForSeq2SeqLM
        words = torch.randint(2, _WORDS, (batch, length))
        return to_words.from_config(made, dtype=torch.bfloat16), {"input_ids": words, "labels": words}

    return make


class Inception(nn.Module):
    """Nine modules of four branches with batch norm, in the shape of GoogLeNet (arXiv:1409.4842)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(_convolution(3, 64, 7, stride=2), _convolution(64, 192, 3, stride=2))
        widths = (192, 256, 480, 512, 512, 512, 528, 832, 832, 1024)
        self.blocks = nn.ModuleList(_Branches(*pair) for pair in itertools.pairwise(widths))
        self.head = nn.Linear(widths[-1], _CLASSES)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = self.stem(images)
        for number, block in enumerate(self.blocks):
            x = block(functional.max_pool2d(x, 3, 2, 1) if number in (0, 2, 7) else x)
        return functional.cross_entropy(self.head(x.mean((2, 3))), labels)


class _Branches(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        part, narrow = after // 4, before // 2
        self.branches = nn.ModuleList(
            (
                _convolution(before, after - 3 * part, 1),
                nn.Sequential(_convolution(before, narrow, 1), _convolution(narrow, part, 3)),
                nn.Sequential(
                    _convolution(before, narrow, 1),
                    _convolution(narrow, part, 3),
                    _convolution(part, part, 3),
                ),
                nn.Sequential(nn.MaxPool2d(3, 1, 1), _convolution(before, part, 1)),
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


def _convolution(before: int, after: int, kernel: int, *, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(after), nn.ReLU())


class Denoiser(nn.Module):
    """A U-Net with residual blocks, times and attention, in the shape of DDPM (arXiv:2006.11239)."""

    def __init__(self, width: int = 64, steps: tuple[int, ...] = (1, 2, 2, 4)) -> None:
        super().__init__()
        widths = [width * step for step in steps]
        self.time = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, 4 * width))
        self.first = nn.Conv2d(3, width, 3, padding=1)
        pairs = list(itertools.pairwise([width, *widths]))
        self.down = nn.ModuleList(_Residual(a, b, 4 * width, level > 1) for level, (a, b) in enumerate(pairs))
        self.middle = _Residual(widths[-1], widths[-1], 4 * width, True)
        self.up = nn.ModuleList(
            _Residual(2 * b, a, 4 * width, level > 1) for level, (a, b) in reversed([*enumerate(pairs)])
        )
        self.last = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, images: Tensor, noise: Tensor, time: Tensor) -> Tensor:
        time, x, skips = self.time(time), self.first(images), []
        for block in self.down:
            x = block(x, time)
            skips.append(x)
            x = functional.avg_pool2d(x, 2)
        x = self.middle(x, time)
        for block in self.up:
            x = functional.interpolate(x, scale_factor=2.0)
            x = block(torch.cat([x, skips.pop()], dim=1), time)
        return functional.mse_loss(self.last(x), noise)


class _Residual(nn.Module):
    """Two residual blocks, and attention between the pixels."""

    def __init__(self, before: int, after: int, time: int, attentive: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_Block(width, after, time) for width in (before, after))
        self.norm = nn.GroupNorm(8, after) if attentive else None
        self.attention = nn.MultiheadAttention(after, 4, batch_first=True) if attentive else None

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, time)
        if self.norm is None or self.attention is None:
            return x
        pixels = self.norm(x).flatten(2).transpose(1, 2)
        mixed, _ = self.attention(pixels, pixels, pixels, need_weights=False)
        return x + mixed.transpose(1, 2).reshape(x.shape)


class _Block(nn.Module):
    def __init__(self, before: int, after: int, time: int) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.GroupNorm(8, before), nn.SiLU(), nn.Conv2d(before, after, 3, padding=1))
        self.time = nn.Linear(time, after)
        self.two = nn.Sequential(nn.GroupNorm(8, after), nn.SiLU(), nn.Conv2d(after, after, 3, padding=1))
        self.skip = nn.Conv2d(before, after, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        shifted = self.one(x) + self.time(functional.silu(time))[:, :, None, None]
        return self.skip(x) + self.two(shifted)


def _inception() -> Step:
    labels = torch.randint(_CLASSES, (32,))
    return Inception(), {"images": torch.randn(32, 3, 224, 224), "labels": labels}


def _denoiser() -> Step:
    images, noise = torch.randn(2, 16, 3, 64, 64)
    return Denoiser(), {"images": images, "noise": noise, "time": torch.randn(16, 64)}


_HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4}

TRACES: Mapping[str, Callable[[], Step]] = {
    "convnext": _images("convnext"),
    "mobilenet-v2": _images("mobilenet_v2"),
    "segformer": _images("segformer"),
    "inception": _inception,
    "denoiser": _denoiser,
    "pvt": _images("pvt"),
    "mamba": _words("mamba", length=40, hidden_size=512, num_hidden_layers=4),
    "swin": _images("swin", depths=(2, 2, 4, 2)),
    "qwen2-moe": _words(
        "qwen2_moe",
        hidden_size=512,
        intermediate_size=1024,
        moe_intermediate_size=512,
        shared_expert_intermediate_size=1024,
        num_hidden_layers=6,
        num_experts=8,
        num_experts_per_tok=2,
        **_HEADS,
    ),
    "gpt2": _words("gpt2", n_embd=512, n_layer=24, n_head=8),
    "t5": _words("t5", d_ff=2048, num_layers=8, num_heads=8, decoder_start_token_id=0),
    "gemma2": _words(
        "gemma2", hidden_size=512, intermediate_size=2048, num_hidden_layers=32, head_dim=64, **_HEADS
    ),
}
"""By name, from small to large."""

"""The networks that the checks train: one of each usual kind, each with its loss.

Dense layers with dropout, convolutions with batch norm, long skips, attention, a recurrence, lower precision,
and another memory format. On a GPU they are larger: a training step holds hundreds of MiB or some GiB.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional

from checkmate_torch.selfcheck.answers import Setup
from checkmate_torch.tools.demo import Block

__all__ = ["NETWORKS", "Network", "networks"]

_CLASSES = 10
_DROPOUT = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network and its batches. Pairs are (value for a CPU, value for a GPU).

    Attributes:
        name: for reports.
        make: makes the network, which maps inputs to logits; its argument True = the large one, for a GPU.
        shape: of one example.
        batch: usual number of examples.
        words: number of different tokens, which are the classes too; None = inputs are floating-point
            numbers.
        labels_each: whether each token or pixel has a label; else each example has one.
        dtype: of autocast; None = float32 throughout.
        channels_last: the memory format of images and convolutions.
    """

    name: str
    make: Callable[[bool], nn.Module]
    shape: tuple[tuple[int, ...], tuple[int, ...]]
    batch: tuple[int, int]
    words: tuple[int, int] | None = None
    labels_each: bool = False
    dtype: torch.dtype | None = None
    channels_last: bool = False

    def model(self, setup: Setup) -> nn.Module:
        """The network with its loss, the same weights each time."""
        torch.manual_seed(0)
        with setup.device:
            model = _WithLoss(self.make(setup.large), self.dtype)
        return model.to(memory_format=torch.channels_last) if self.channels_last else model  # type: ignore[call-overload]

    def examples(self, setup: Setup, n: int | None = None) -> tuple[Tensor, Tensor]:
        """Random inputs and labels for n examples; by default, for the usual number."""
        n, shape = n or self.batch[setup.large], self.shape[setup.large]
        words = self.words[setup.large] if self.words else None
        with setup.device:
            x = torch.randn(n, *shape) if words is None else torch.randint(words, (n, *shape))
            labels = n * (prod(shape[-2:]) if self.labels_each else 1)
            target = torch.randint(words or _CLASSES, (labels,))
        return (x.to(memory_format=torch.channels_last) if self.channels_last else x), target


class _WithLoss(nn.Module):
    """A network and the cross entropy of its logits."""

    def __init__(self, network: nn.Module, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.network, self.dtype = network, dtype

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        with torch.autocast(x.device.type, self.dtype, enabled=self.dtype is not None):
            logits: Tensor = self.network(x)
            if logits.ndim == 4:  # as rows of pixels: on a GPU the loss of images is summed in any order
                logits = logits.movedim(1, -1)
            return functional.cross_entropy(logits.flatten(0, -2), target)


class _Residual(nn.Sequential):
    """x + f(x)."""

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = x + super().forward(x)  # type: ignore[no-untyped-call]
        return found


class _Attention(nn.Module):
    """Causal self-attention with dropout."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // 32
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.mix(x).chunk(3, -1))
        found = functional.scaled_dot_product_attention(q, k, v, dropout_p=_DROPOUT, is_causal=True)
        mixed: Tensor = self.out(found.transpose(1, 2).flatten(2))
        return mixed


class _Embedding(nn.Module):
    """Tokens to vectors: one for the word plus one for the place."""

    def __init__(self, words: int, length: int, width: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)

    def forward(self, tokens: Tensor) -> Tensor:
        vectors: Tensor = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        return vectors


class _UNet(nn.Module):
    """Convolutions, a smaller U-Net at half the resolution, and a skip across it."""

    def __init__(self, before: int, width: int, levels: int) -> None:
        super().__init__()
        self.down, self.inner = _convolutions(before, width), None
        if levels:
            smaller, grow = _UNet(width, 2 * width, levels - 1), nn.ConvTranspose2d(2 * width, width, 2, 2)
            self.inner = nn.Sequential(nn.MaxPool2d(2), smaller, grow)
            self.up = _convolutions(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(x)
        return x if self.inner is None else self.up(torch.cat([x, self.inner(x)], 1))


class _Recurrent(nn.Module):
    """Two layers of LSTM; the last state is classified."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(width, width, 2, batch_first=True), nn.Linear(width, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.lstm(x)[0][:, -1])
        return logits


def _dense(width: int) -> _Residual:
    layers = (nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(_DROPOUT), nn.Linear(4 * width, width))
    return _Residual(nn.LayerNorm(width), *layers)


def _convolutions(before: int, after: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (before, after):
        layers += [nn.Conv2d(channels, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers)


def _mlp(large: bool) -> nn.Module:
    width = 1024 if large else 64
    return nn.Sequential(*(_dense(width) for _ in range(6)), nn.Linear(width, _CLASSES))


def _cnn(large: bool) -> nn.Module:
    width = 64 if large else 8
    stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
    sizes = ((1, 1, 1), (1, 1, 1), (1, 2, 2), (2, 2, 1), (2, 4, 2), (4, 4, 1))
    blocks = (Block(before * width, after * width, stride) for before, after, stride in sizes)
    return nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, _CLASSES))


def _unet(large: bool) -> nn.Module:
    width = 32 if large else 8
    return nn.Sequential(_UNet(3, width, 3), nn.Conv2d(width, _CLASSES, 1))


def _gpt(large: bool) -> nn.Module:
    words, length, width, layers = (16384, 1024, 768, 6) if large else (256, 64, 64, 3)
    attention = (_Residual(nn.LayerNorm(width), _Attention(width)) for _ in range(layers))
    blocks = (layer for mixing in attention for layer in (mixing, _dense(width)))
    head = nn.Linear(width, words, bias=False)
    return nn.Sequential(_Embedding(words, length, width), *blocks, nn.LayerNorm(width), head)


def _lstm(large: bool) -> nn.Module:
    return _Recurrent(512 if large else 32)


_MLP = Network(name="mlp", make=_mlp, shape=((64,), (1024,)), batch=(512, 8192))
_CNN = Network(name="cnn", make=_cnn, shape=((3, 32, 32), (3, 128, 128)), batch=(16, 32))
_GPT = Network(
    name="gpt", make=_gpt, shape=((64,), (1024,)), batch=(8, 4), words=(256, 16384), labels_each=True
)
_UNET = replace(_CNN, name="unet", make=_unet, batch=(8, 16), labels_each=True)
_LSTM = Network(name="lstm", make=_lstm, shape=((64, 32), (128, 512)), batch=(64, 64))
NETWORKS = (
    *(_MLP, _CNN, _GPT, _UNET, _LSTM),
    replace(_GPT, name="gpt-bfloat16", dtype=torch.bfloat16),
    replace(_CNN, name="cnn-channels-last", channels_last=True),
    replace(_CNN, name="cnn-float16", dtype=torch.float16),
)
"""The most telling first: a slice that runs out of time leaves out the last ones."""


def networks(setup: Setup) -> list[Network]:
    """The networks for a device; float16 is trained on GPUs."""
    return [one for one in NETWORKS if one.dtype != torch.float16 or setup.device.type == "cuda"]

"""The networks that the checks train: one of each usual kind, each with its loss.

Dense layers with dropout, convolutions with batch norm, long skips, attention, a recurrence, lower precision,
and another memory format. On a GPU they are larger: a training step holds hundreds of MiB or some GiB.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from checkmate_torch.selfcheck.rows import Setup
from checkmate_torch.tools.demo import Block

__all__ = ["NETWORKS", "Network", "checkpoint_blocks", "networks"]

_CLASSES = 10
_DROPOUT = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network and its batches.

    Attributes:
        name: for reports.
        make: the network, small or large, which maps inputs to logits.
        inputs: a batch of n examples for the small or the large network.
        batch: examples in a batch of the small and of the large network.
        dtype: of autocast; None = float32 throughout.
        channels_last: the memory format of images and convolutions.
    """

    name: str
    make: Callable[[bool], nn.Module]
    inputs: Callable[[bool, int], tuple[Tensor, Tensor]]
    batch: tuple[int, int]
    dtype: torch.dtype | None = None
    channels_last: bool = False

    def model(self, setup: Setup) -> nn.Module:
        """The network with its loss, the same weights each time."""
        torch.manual_seed(0)
        with setup.device:
            model = _Task(self.make(setup.large), self.dtype)
        return model.to(memory_format=torch.channels_last) if self.channels_last else model  # type: ignore[call-overload]

    def examples(self, setup: Setup, n: int | None = None) -> tuple[Tensor, Tensor]:
        """A batch of n examples; by default, of the usual number."""
        with setup.device:
            x, target = self.inputs(setup.large, n or self.batch[setup.large])
        return (x.to(memory_format=torch.channels_last) if self.channels_last else x), target


class _Task(nn.Module):
    """A network and the cross entropy of its logits."""

    def __init__(self, network: nn.Module, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.network, self.dtype = network, dtype

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        with torch.autocast(x.device.type, self.dtype, enabled=self.dtype is not None):
            return functional.cross_entropy(self.network(x), target)


class _Blocks(nn.ModuleList):
    """Layers in a row; if ``checkpointed``, each is computed again in the backward pass."""

    checkpointed = False

    def forward(self, x: Tensor) -> Tensor:
        for block in self:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return x


def checkpoint_blocks(model: nn.Module) -> None:
    """Let ``torch.utils.checkpoint`` compute each block of a network again in the backward pass."""
    for module in model.modules():
        if isinstance(module, _Blocks):
            module.checkpointed = True


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


class _Decoder(nn.Module):
    """A GPT-like decoder; logits ``[n · length, words]``."""

    def __init__(self, words: int, length: int, width: int, layers: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = _Blocks(
            nn.Sequential(
                _Residual(nn.LayerNorm(width), _Attention(width)),
                _Residual(nn.LayerNorm(width), *_dense(width)),
            )
            for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.blocks(self.words(tokens) + self.places.weight[: tokens.shape[1]])
        logits: Tensor = self.head(self.norm(x))
        return logits.flatten(0, 1)


class _UNet(nn.Module):
    """Down, up, and a skip across each level; a class for each pixel."""

    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(levels + 1)]
        self.stem = _convolutions(3, width)
        self.down = nn.ModuleList(_convolutions(a, b) for a, b in pairwise(widths))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairwise(widths))
        self.up = nn.ModuleList(_convolutions(2 * a, a) for a in widths[:-1])
        self.head = nn.Conv2d(width, _CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = [self.stem(x)]
        for down in self.down:
            skips.append(down(functional.max_pool2d(skips[-1], 2)))
        x = skips.pop()
        for up, grow in zip(reversed(self.up), reversed(self.grow), strict=True):
            x = up(torch.cat([skips.pop(), grow(x)], 1))
        logits: Tensor = self.head(x)
        return logits.movedim(1, -1).flatten(0, -2)  # the loss of images adds up in any order on a GPU


class _Recurrent(nn.Module):
    """Two layers of LSTM; the last state is classified."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(width, width, 2, batch_first=True), nn.Linear(width, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.lstm(x)[0][:, -1])
        return logits


def _dense(width: int) -> list[nn.Module]:
    return [nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(_DROPOUT), nn.Linear(4 * width, width)]


def _convolutions(before: int, after: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (before, after):
        layers += [nn.Conv2d(channels, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers)


def _mlp(large: bool) -> nn.Module:
    width = 1024 if large else 64
    blocks = _Blocks(_Residual(nn.LayerNorm(width), *_dense(width)) for _ in range(6))
    return nn.Sequential(blocks, nn.Linear(width, _CLASSES))


def _vectors(large: bool, n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 1024 if large else 64), torch.randint(_CLASSES, (n,))


def _cnn(large: bool) -> nn.Module:
    width = 64 if large else 8
    stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
    blocks = _Blocks(
        Block(before, after, stride)
        for before, after, stride in ((1, 1, 1), (1, 1, 1), (1, 2, 2), (2, 2, 1), (2, 4, 2), (4, 4, 1))
        for before, after in [(before * width, after * width)]
    )
    return nn.Sequential(stem, blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, _CLASSES))


def _images(large: bool, n: int) -> tuple[Tensor, Tensor]:
    side = 128 if large else 32
    return torch.randn(n, 3, side, side), torch.randint(_CLASSES, (n,))


def _unet(large: bool) -> nn.Module:
    return _UNet(32 if large else 8, 3)


def _segments(large: bool, n: int) -> tuple[Tensor, Tensor]:
    x, _ = _images(large, n)
    return x, torch.randint(_CLASSES, (n * x.shape[2] * x.shape[3],))


def _gpt(large: bool) -> nn.Module:
    return _Decoder(16384, 1024, 768, 6) if large else _Decoder(256, 64, 64, 3)


def _tokens(large: bool, n: int) -> tuple[Tensor, Tensor]:
    words, length = (16384, 1024) if large else (256, 64)
    return torch.randint(words, (n, length)), torch.randint(words, (n * length,))


def _lstm(large: bool) -> nn.Module:
    return _Recurrent(512 if large else 32)


def _sequences(large: bool, n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, *((128, 512) if large else (64, 32))), torch.randint(_CLASSES, (n,))


NETWORKS = (
    Network(name="mlp", make=_mlp, inputs=_vectors, batch=(512, 8192)),
    Network(name="cnn", make=_cnn, inputs=_images, batch=(16, 32)),
    Network(name="gpt", make=_gpt, inputs=_tokens, batch=(8, 4)),
    Network(name="unet", make=_unet, inputs=_segments, batch=(8, 16)),
    Network(name="lstm", make=_lstm, inputs=_sequences, batch=(64, 64)),
    Network(name="gpt-bfloat16", make=_gpt, inputs=_tokens, batch=(8, 4), dtype=torch.bfloat16),
    Network(name="cnn-channels-last", make=_cnn, inputs=_images, batch=(16, 32), channels_last=True),
    Network(name="cnn-float16", make=_cnn, inputs=_images, batch=(16, 32), dtype=torch.float16),
)
"""The most telling first: a slice that runs out of time leaves out the last ones."""


def networks(setup: Setup) -> list[Network]:
    """The networks for a device; float16 is trained on GPUs."""
    return [one for one in NETWORKS if one.dtype != torch.float16 or setup.device.type == "cuda"]

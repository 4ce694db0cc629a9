"""The paper's networks in PyTorch, written from the papers that :data:`zoo.NETWORKS` names.

They have the same layers as in Keras, so that both front ends trace the same graph: a bottleneck has its
stride in the first convolution, as in the paper, and ResNet's convolutions have a bias, as in Keras. An
activation directly after a convolution or a dense layer runs in place: it is part of that layer. All end in
logits.

``small`` networks have narrow layers, few blocks, and images of a quarter of the side or less. ``side``
replaces the usual side of VGG's square images; the other networks take images of any size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from zoo.small_torch import Checkpointed

__all__ = ["NETS", "SEGMENTING", "Checkpointed", "in_blocks"]

_SEGMENTS = 19
"""Classes of the segmentations: those of Cityscapes."""


def vgg16(small: bool, side: int | None = None) -> nn.Module:
    """Configuration D."""
    return _vgg((2, 2, 3, 3, 3), small, side)


def vgg19(small: bool, side: int | None = None) -> nn.Module:
    """Configuration E."""
    return _vgg((2, 2, 4, 4, 4), small, side)


def mobilenet(small: bool) -> nn.Module:
    """Width 1, with Keras' dropout of 0.001 before the classifier."""
    width = 4 if small else 32
    strides = (1, 2, 1, 2) if small else (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)
    layers = [nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU6()]
    before = width
    for k, stride in enumerate(strides):
        after = 2 * before if k == 0 or stride == 2 else before
        layers += [
            nn.Conv2d(before, before, 3, stride, 1, groups=before, bias=False),
            nn.BatchNorm2d(before),
            nn.ReLU6(),
            nn.Conv2d(before, after, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU6(),
        ]
        before = after
    tail = (nn.AdaptiveAvgPool2d(1), nn.Dropout(1e-3), nn.Conv2d(before, 1000, 1), nn.Flatten())
    return nn.Sequential(*layers, *tail)


def resnet50(small: bool) -> nn.Module:
    """Bottlenecks of 3, 4, 6 and 3."""
    width, blocks = (8, (2, 2)) if small else (64, (3, 4, 6, 3))
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 7, 2, 3),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    before = width
    for stage, count in enumerate(blocks):
        for k in range(count):
            layers.append(_Bottleneck(before, width * 2**stage, 2 if stage and not k else 1))
            before = 4 * width * 2**stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 1000))


def densenet121(small: bool) -> nn.Module:
    """Growth 32, blocks of 6, 12, 24 and 16."""
    growth, blocks = (4, (2, 3)) if small else (32, (6, 12, 24, 16))
    before = 2 * growth
    layers: list[nn.Module] = [
        nn.Conv2d(3, before, 7, 2, 3, bias=False),
        nn.BatchNorm2d(before),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    for stage, count in enumerate(blocks):
        if stage:
            layers += [*_normed(before), nn.Conv2d(before, before // 2, 1, bias=False), nn.AvgPool2d(2)]
            before //= 2
        for _ in range(count):
            layers.append(_Dense(before, growth))
            before += growth
    tail = (*_normed(before), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 1000))
    return nn.Sequential(*layers, *tail)


def unet(small: bool) -> nn.Module:
    """Up from the fourth pooling, over skips from the three before."""
    return _UNet(4 if small else 64)


def fcn8(small: bool) -> nn.Module:
    """Scores of the last three poolings."""
    return _FCN8(4 if small else 64, 32 if small else 4096)


def segnet(small: bool) -> nn.Module:
    """Up from the fourth pooling."""
    width = 4 if small else 64
    widths = [8 * width, 4 * width, 2 * width, width]
    up: list[nn.Module] = _refined(8 * width, 8 * width)
    for before, after in pairwise(widths):
        up += [nn.Upsample(scale_factor=2), *_refined(before, after)]
    return nn.Sequential(*_encoder(width)[:4], *up, nn.Conv2d(width, _SEGMENTS, 3, padding=1))


NETS: dict[str, Callable[..., nn.Module]] = {
    one.__name__: one for one in (vgg16, vgg19, mobilenet, resnet50, unet, fcn8, segnet, densenet121)
}
"""By name; the argument is ``small``."""

SEGMENTING = {"unet": 2, "fcn8": 1, "segnet": 2}
"""Networks that predict a class for each pixel, and the factor by which their output is smaller."""

_BLOCKS: dict[str, Sequence[int]] = {
    "vgg19": [1] * 5,
    "mobilenet": [3] + [6] * 13,
    "resnet50": [4] + [1] * 16,
    "segnet": [1, 1, 1, 1, 3, 4, 4, 4],
}
"""Numbers of successive layers that form a block; those after the last block are in none."""


def in_blocks(name: str, model: nn.Module) -> nn.Module:
    """The network with each block recomputed; what comes after the last block is not.

    Blocks are the stages of an encoder or a decoder, MobileNet's pairs of convolutions, ResNet's bottlenecks.

    Args:
        name: of one of the paper's six networks.
        model: the network, not small; its parts are used, and may be replaced.
    """
    if isinstance(model, _UNet):
        for stages in (model.encoder, model.up):
            for k, stage in enumerate(stages):
                stages[k] = Checkpointed(stage)
        model.bottom = Checkpointed(model.bottom)
        return model
    if isinstance(model, _FCN8):
        model.third = nn.Sequential(*map(Checkpointed, model.third))
        model.fourth, model.fifth = Checkpointed(model.fourth), Checkpointed(model.fifth)
        return model
    layers = list(model.children())
    blocks: list[nn.Module] = []
    for count in _BLOCKS[name]:
        blocks.append(Checkpointed(nn.Sequential(*layers[:count])))
        del layers[:count]
    return nn.Sequential(*blocks, *layers)


class _Bottleneck(nn.Module):
    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.layers = nn.Sequential(
            *(nn.Conv2d(before, width, 1, stride), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, 1, 1), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, after, 1), nn.BatchNorm2d(after)),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride), nn.BatchNorm2d(after))
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        shortcut = self.shortcut(x)
        return self.activation(shortcut + self.layers(x))  # type: ignore[no-any-return]


class _Dense(nn.Module):
    def __init__(self, before: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(*_normed(before), nn.Conv2d(before, 4 * growth, 1, bias=False)),
            *(*_normed(4 * growth), nn.Conv2d(4 * growth, growth, 3, 1, 1, bias=False)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.layers(x)], dim=1)


class _UNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder = nn.ModuleList(_encoder(width)[:4])
        self.bottom = nn.Sequential(*_refined(8 * width, 8 * width))
        self.scale = nn.ModuleList(nn.Upsample(scale_factor=2) for _ in range(3))
        self.up = nn.ModuleList(
            nn.Sequential(*_refined(before + skip, after))
            for before, skip, after in ((8, 4, 4), (4, 2, 2), (2, 1, 1))
            for before, skip, after in ((before * width, skip * width, after * width),)
        )
        self.head = nn.Conv2d(width, _SEGMENTS, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for stage in self.encoder:
            x = stage(x)
            skips.append(x)
        x = self.bottom(skips.pop())
        for scale, up in zip(self.scale, self.up, strict=True):
            x = up(torch.cat([scale(x), skips.pop()], dim=1))
        return self.head(x)  # type: ignore[no-any-return]


class _FCN8(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        stages = _encoder(width)
        self.third = nn.Sequential(*stages[:3])
        self.fourth, self.fifth = stages[3:]
        self.scores = nn.Sequential(
            *(nn.Conv2d(8 * width, hidden, 7, padding=3), nn.ReLU(inplace=True), nn.Dropout(0.5)),
            *(nn.Conv2d(hidden, hidden, 1), nn.ReLU(inplace=True), nn.Dropout(0.5)),
            nn.Conv2d(hidden, _SEGMENTS, 1),
        )
        self.score_4 = nn.Conv2d(8 * width, _SEGMENTS, 1)
        self.score_3 = nn.Conv2d(4 * width, _SEGMENTS, 1)
        self.up_5, self.up_4 = (
            nn.ConvTranspose2d(_SEGMENTS, _SEGMENTS, 4, 2, 1, bias=False) for _ in range(2)
        )
        self.up_3 = nn.ConvTranspose2d(_SEGMENTS, _SEGMENTS, 16, 8, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        third = self.third(x)
        fourth = self.fourth(third)
        x = self.up_5(self.scores(self.fifth(fourth)))
        x = self.up_4(x + self.score_4(fourth))
        return self.up_3(x + self.score_3(third))  # type: ignore[no-any-return]


def _vgg(counts: Sequence[int], small: bool, side: int | None) -> nn.Module:
    width, hidden = (4, 64) if small else (64, 4096)
    pixels = ((side or (32 if small else 224)) // 32) ** 2
    return nn.Sequential(
        *_encoder(width, counts),
        nn.Flatten(),
        *(nn.Linear(8 * width * pixels, hidden), nn.ReLU(inplace=True)),
        *(nn.Linear(hidden, hidden), nn.ReLU(inplace=True)),
        nn.Linear(hidden, 1000),
    )


def _encoder(width: int, counts: Sequence[int] = (2, 2, 3, 3, 3)) -> list[nn.Sequential]:
    """The five stages of VGG, each with its pooling."""
    widths = [3, width, 2 * width, 4 * width, 8 * width, 8 * width]
    return [
        nn.Sequential(*_convolutions(before, after, count), nn.MaxPool2d(2))
        for (before, after), count in zip(pairwise(widths), counts, strict=True)
    ]


def _convolutions(before: int, after: int, count: int) -> Iterable[nn.Module]:
    for k in range(count):
        yield nn.Conv2d(after if k else before, after, 3, padding=1)
        yield nn.ReLU(inplace=True)


def _refined(before: int, after: int) -> list[nn.Module]:
    """The layers after each scaling of a decoder."""
    return [*_convolutions(before, after, 1), nn.BatchNorm2d(after)]


def _normed(width: int) -> tuple[nn.Module, nn.Module]:
    return nn.BatchNorm2d(width), nn.ReLU()

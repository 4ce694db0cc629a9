"""Small networks with random weights: four shapes of dependency graph for demonstration, test and benchmark.

A chain with short residuals (:func:`mlp`), stages of residuals with batch norm (:func:`resnet18`), long skip
connections (:func:`unet`), and attention with the loss inside (:func:`gpt2`). In the default sizes a training
step takes less than a second on two cores, and activations are most of its memory.

With ``checkpoint_blocks`` each block is wrapped in ``torch.utils.checkpoint``: the usual way to save memory
by hand, for comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

__all__ = ["CASES", "Case", "gpt2", "mlp", "resnet18", "unet"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Case:
    """A network, a batch, and the loss of a training step: ``loss(module(*inputs)).backward()``.

    Attributes:
        name: of the network.
        module: in train mode, with seeded random weights.
        inputs: a random batch, without gradients.
        loss: maps what the module returns to a scalar.
        targets: what the loss compares with; None if the module computes its loss itself.
    """

    name: str
    module: nn.Module
    inputs: tuple[Tensor, ...]
    loss: Callable[[Tensor], Tensor]
    targets: Tensor | None = None


class Residual(nn.Module):
    """x + f(x)."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Apply to x of any shape that f keeps."""
        return x + self.layers(x)  # type: ignore[no-any-return]


class Checkpointed(nn.Module):
    """f, computed again in the backward pass instead of keeping what is inside."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, *inputs: Tensor) -> Tensor:
        """Apply f."""
        return checkpoint(self.block, *inputs, use_reentrant=False)  # type: ignore[no-any-return]


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with batch norm around a shortcut (He et al., CVPR 2016, figure 2)."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Images ``[n, before, h, w]`` to ``[n, after, h / stride, w / stride]``."""
        return functional.relu(self.layers(x) + self.shortcut(x))


class UNet(nn.Module):
    """Down, up, and a skip connection across each level (Ronneberger et al., MICCAI 2015)."""

    def __init__(self, channels: int, classes: int, width: int, levels: int, wrap: Wrap) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(levels + 1)]
        self.stem = nn.Conv2d(channels, width, 3, padding=1)
        self.down = nn.ModuleList(wrap(_double_conv(w, w)) for w in widths[:-1])
        self.shrink = nn.ModuleList(nn.Conv2d(a, b, 2, 2) for a, b in pairwise(widths))
        self.bottom = wrap(_double_conv(widths[-1], widths[-1]))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairwise(widths))
        self.up = nn.ModuleList(wrap(_double_conv(2 * w, w)) for w in widths[:-1])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Images ``[n, channels, h, w]`` to logits ``[n, classes, h, w]``."""
        x = self.stem(x)
        skips: list[Tensor] = []
        for down, shrink in zip(self.down, self.shrink, strict=True):
            skips.append(down(x))
            x = shrink(skips[-1])
        x = self.bottom(x)
        for up, grow in zip(reversed(self.up), reversed(self.grow), strict=True):
            x = up(torch.cat([skips.pop(), grow(x)], dim=1))
        return self.head(x)  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Causal multi-head self-attention."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Sequences ``[n, length, width]`` to the same shape."""
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class GPT2(nn.Module):
    """A pre-norm decoder with learned positions and a tied head (Radford et al., 2019)."""

    def __init__(
        self, vocabulary: int, length: int, width: int, layers: int, heads: int, dropout: float, wrap: Wrap
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(length, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(wrap(self._block(width, heads, dropout)) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.token.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    @staticmethod
    def _block(width: int, heads: int, dropout: float) -> nn.Module:
        attention = (nn.LayerNorm(width), Attention(width, heads, dropout), nn.Dropout(dropout))
        mlp = (nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout))
        return nn.Sequential(Residual(*attention), Residual(nn.LayerNorm(width), *mlp))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy of the next tokens; both arguments are int64 ``[n, length]``."""
        x = self.dropout(self.token(tokens) + self.position.weight[: tokens.shape[1]])
        logits = self.head(self.norm(self.blocks(x)))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


Wrap = Callable[[nn.Module], nn.Module]


def mlp(
    *, blocks: int = 12, width: int = 128, batch: int = 2048, checkpoint_blocks: bool = False, seed: int = 0
) -> Case:
    """Pre-norm residual blocks LN → Linear → GELU → Linear; squared error."""
    torch.manual_seed(seed)
    wrap = _wrap(checkpoint_blocks)
    layers = [
        wrap(
            Residual(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        )
        for _ in range(blocks)
    ]
    x, target = torch.randn(batch, width), torch.randn(batch, width)
    return Case(
        name="mlp",
        module=nn.Sequential(*layers),
        inputs=(x,),
        loss=lambda out: functional.mse_loss(out, target),
        targets=target,
    )


def resnet18(
    *,
    width: int = 32,
    image: int = 64,
    batch: int = 16,
    stages: tuple[int, ...] = (2, 2, 2, 2),
    channels: int = 3,
    classes: int = 10,
    checkpoint_blocks: bool = False,
    seed: int = 0,
) -> Case:
    """ResNet-18 with ``width`` channels in its first stage and a 3×3 stem; cross entropy over classes.

    ``stages`` are the numbers of blocks at each resolution; others than the default make it deeper.
    """
    torch.manual_seed(seed)
    wrap = _wrap(checkpoint_blocks)
    layers: list[nn.Module] = [
        nn.Conv2d(channels, width, 3, 1, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    ]
    before = width
    for stage, blocks in enumerate(stages):
        for block in range(blocks):
            after = width * 2**stage
            layers.append(wrap(BasicBlock(before, after, 2 if stage > 0 and block == 0 else 1)))
            before = after
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes)]
    x, target = torch.randn(batch, channels, image, image), torch.randint(classes, (batch,))
    return Case(
        name="resnet18",
        module=nn.Sequential(*layers),
        inputs=(x,),
        loss=lambda out: functional.cross_entropy(out, target),
        targets=target,
    )


def unet(
    *,
    width: int = 16,
    levels: int = 3,
    image: int = 64,
    batch: int = 16,
    channels: int = 3,
    classes: int = 4,
    checkpoint_blocks: bool = False,
    seed: int = 0,
) -> Case:
    """U-Net with batch norm; cross entropy over the pixels."""
    torch.manual_seed(seed)
    module = UNet(channels, classes, width, levels, _wrap(checkpoint_blocks))
    x, target = torch.randn(batch, channels, image, image), torch.randint(classes, (batch, image, image))
    return Case(
        name="unet",
        module=module,
        inputs=(x,),
        loss=lambda out: functional.cross_entropy(out, target),
        targets=target,
    )


def gpt2(
    *,
    layers: int = 4,
    width: int = 128,
    heads: int = 4,
    length: int = 128,
    batch: int = 8,
    vocabulary: int = 1024,
    dropout: float = 0.0,
    checkpoint_blocks: bool = False,
    seed: int = 0,
) -> Case:
    """GPT-2-like decoder; its loss is computed inside, from targets that are a second input."""
    torch.manual_seed(seed)
    module = GPT2(vocabulary, length, width, layers, heads, dropout, _wrap(checkpoint_blocks))
    text = torch.randint(vocabulary, (batch, length + 1))
    inputs = (text[:, :-1].contiguous(), text[:, 1:].contiguous())
    return Case(name="gpt2", module=module, inputs=inputs, loss=lambda out: out)


CASES: dict[str, Callable[..., Case]] = {"mlp": mlp, "resnet18": resnet18, "unet": unet, "gpt2": gpt2}
"""The networks by name."""


def _wrap(checkpoint_blocks: bool) -> Wrap:
    return Checkpointed if checkpoint_blocks else lambda block: block


def _double_conv(before: int, after: int) -> nn.Module:
    layers: list[nn.Module] = []
    for channels in (before, after):
        layers += [nn.Conv2d(channels, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers)

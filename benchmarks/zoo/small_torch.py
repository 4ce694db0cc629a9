"""Small PyTorch networks with random weights, for tests and benchmarks: four kinds of dependency graph.

A chain with short residuals (:func:`mlp`), stages of residuals with batch norm (:func:`resnet18`), long skip
connections (:func:`unet`), and attention with the loss inside the module (:func:`gpt2`). In the default sizes
a training step takes less than a second on two cores, and activations take most of its memory.

``checkpoint_blocks=True`` wraps each block in ``torch.utils.checkpoint``, for comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from checkmate_torch.tools.demo import Block

__all__ = ["CASES", "Case", "gpt2", "mlp", "perceptron", "resnet18", "unet"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Case:
    """A network, a batch, and the loss of a training step: ``loss(module(*inputs)).backward()``.

    Attributes:
        name: of the network.
        module: in train mode, with seeded random weights.
        inputs: a random batch, without gradients.
        loss: maps the module's result to a scalar.
        targets: labels that ``loss`` reads; None if the module computes its own loss.
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
    """f, recomputed in the backward pass: its intermediate results are not kept."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, *inputs: Tensor) -> Tensor:
        """Apply f."""
        return checkpoint(self.block, *inputs, use_reentrant=False)  # type: ignore[no-any-return]


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


def perceptron(*widths: int, dropout: float = 0.0) -> nn.Sequential:
    """Linear layers from each width to the next, with GELU and, if it is not 0, dropout between them."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(widths[0], widths[1])]
    for before, after in pairwise(widths[1:]):
        layers += [nn.GELU(), *([nn.Dropout(dropout)] if dropout else []), nn.Linear(before, after)]
    return nn.Sequential(*layers)


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
    checkpoint_blocks: bool = False,
    seed: int = 0,
) -> Case:
    """ResNet-18 with ``width`` channels in its first stage and a 3×3 stem; cross entropy over ten classes."""
    torch.manual_seed(seed)
    wrap = _wrap(checkpoint_blocks)
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    before = width
    for stage in range(4):
        for block in range(2):
            after = width * 2**stage
            layers.append(wrap(Block(before, after, 2 if stage > 0 and block == 0 else 1)))
            before = after
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10)]
    x, target = torch.randn(batch, 3, image, image), torch.randint(10, (batch,))
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
    checkpoint_blocks: bool = False,
    seed: int = 0,
) -> Case:
    """U-Net with batch norm; cross entropy over four classes for each pixel."""
    torch.manual_seed(seed)
    module = UNet(3, 4, width, levels, _wrap(checkpoint_blocks))
    x, target = torch.randn(batch, 3, image, image), torch.randint(4, (batch, image, image))
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
    """GPT-2-like decoder; the module computes the loss, from targets that are its second input."""
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

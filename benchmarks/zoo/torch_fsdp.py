"""Small networks for FSDP2: which of their modules are blocks, and batches for each rank.

Each is called with its batch by keyword; what it returns is the loss, or has the loss as ``.loss``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import transformers
from torch import Generator, Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from zoo.small_torch import UNet

__all__ = ["DEEPER", "NETWORKS", "Sharded", "checkpointed", "shard"]


class Sharded(NamedTuple):
    """A network that can be sharded.

    Attributes:
        model: not sharded yet.
        blocks: the paths of its modules that become units of FSDP.
        batch: a batch, made from random numbers.
    """

    model: nn.Module
    blocks: Sequence[str]
    batch: Callable[[Generator], Mapping[str, Tensor]]


def shard(network: Sharded, model: nn.Module) -> None:
    """Apply ``fully_shard`` to the blocks of a network, then to itself.

    Args:
        network: names the blocks.
        model: its model, or a twin of that.
    """
    for name in network.blocks:
        fully_shard(model.get_submodule(name))
    fully_shard(model)


def checkpointed(model: nn.Module, blocks: Sequence[str]) -> None:
    """Wrap the forward pass of the blocks of a model in ``torch.utils.checkpoint``."""
    for block in map(model.get_submodule, blocks):
        vars(block)["forward"] = partial(checkpoint, block.forward, use_reentrant=False)


_TEXT = {"vocab_size": 500, "use_cache": False}
_SENTENCES, _LENGTH = 16, 64


def _text(kind: str, blocks: str, **sizes: Any) -> Sharded:
    module = getattr(transformers, kind)
    model = module(module.config_class(**_TEXT, **sizes)).train()

    def batch(numbers: Generator) -> Mapping[str, Tensor]:
        tokens = torch.randint(0, _TEXT["vocab_size"], (_SENTENCES, _LENGTH), generator=numbers)
        return {"input_ids": tokens, "labels": tokens}

    return Sharded(model, _children(model, blocks), batch)


def _children(model: nn.Module, *paths: str) -> list[str]:
    return [f"{path}.{name}" for path in paths for name, _ in model.get_submodule(path).named_children()]


def _gpt2() -> Sharded:
    sizes = {"n_layer": 3, "n_embd": 128, "n_head": 4, "n_positions": _LENGTH}
    return _text("GPT2LMHeadModel", "transformer.h", **sizes)  # with GPT-2's own dropout


def _llama(layers: int = 3) -> Sharded:
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    sizes = {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": layers}
    return _text("LlamaForCausalLM", "model.layers", **sizes, **heads, max_position_embeddings=_LENGTH)


def _qwen3_moe() -> Sharded:
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    sizes = {"hidden_size": 128, "num_hidden_layers": 3, "max_position_embeddings": _LENGTH}
    return _text("Qwen3MoeForCausalLM", "model.layers", **sizes, **heads, **experts)


def _vit() -> Sharded:
    sizes = {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 512}
    config = transformers.ViTConfig(**sizes, image_size=64, patch_size=8, num_labels=10)
    model = transformers.ViTForImageClassification(config).train()

    def batch(numbers: Generator) -> Mapping[str, Tensor]:
        images = torch.randn(32, 3, 64, 64, generator=numbers)
        return {"pixel_values": images, "labels": torch.randint(0, 10, (32,), generator=numbers)}

    return Sharded(model, _children(model, "vit.layers"), batch)


class _Loss(nn.Module):
    """A network with its loss: the mean cross-entropy."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """The loss of a batch."""
        return nn.functional.cross_entropy(self.inner(x), labels)


def _unet() -> Sharded:
    model = _Loss(UNet(3, 4, width=16, levels=3, wrap=lambda module: module))

    def batch(numbers: Generator) -> Mapping[str, Tensor]:
        images = torch.randn(4, 3, 64, 64, generator=numbers)
        return {"x": images, "labels": torch.randint(0, 4, (4, 64, 64), generator=numbers)}

    return Sharded(model, [*_children(model, "inner.down", "inner.up"), "inner.bottom"], batch)


class _Block(nn.Module):
    """A normalised perceptron with one hidden layer, added to its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Rows of the width to the same shape."""
        added: Tensor = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return added


def _mlp() -> Sharded:
    width, layers = 64, 6
    model = _Loss(nn.Sequential(*(_Block(width) for _ in range(layers)), nn.Linear(width, 10)))

    def batch(numbers: Generator) -> Mapping[str, Tensor]:
        rows = torch.randn(1024, width, generator=numbers)
        return {"x": rows, "labels": torch.randint(0, 10, (1024,), generator=numbers)}

    return Sharded(model, [f"inner.{k}" for k in range(layers)], batch)


NETWORKS: Mapping[str, Callable[[], Sharded]] = {
    "MLP": _mlp,
    "U-Net": _unet,
    "GPT-2": _gpt2,
    "Llama": _llama,
    "ViT": _vit,
    "Qwen3-MoE": _qwen3_moe,
}
"""By name."""
DEEPER: Mapping[str, Callable[[], Sharded]] = {f"Llama, {n} blocks": partial(_llama, n) for n in (6, 12)}
"""The same with more blocks."""

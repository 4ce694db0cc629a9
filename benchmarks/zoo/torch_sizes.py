"""Networks of transformers and timm at their published sizes, with random weights, for a GPU.

Each is trained as people train it: in bfloat16 by autocast, Llama with its weights in bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from checkmate_torch.selfcheck.answers import Setup
from zoo.torch_transformers import LLAMA_1B

__all__ = ["NETWORKS", "Sized", "language"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """A network, its batches, and the library's own gradient checkpointing.

    Attributes:
        library: name of its distribution.
        make: makes a module that maps the tensors of a batch to the loss.
        inputs: a batch of n examples.
        batch: the usual number of examples.
        checkpoint: turns on the library's own gradient checkpointing in the made module.
        dtype: of a gradient scaler, as the self-check's loop asks for it; None = no scaler.
    """

    library: str
    make: Callable[[], nn.Module]
    inputs: Callable[[int], tuple[Tensor, ...]]
    batch: int
    checkpoint: Callable[[Any], object]
    dtype: torch.dtype | None = None

    def model(self, setup: Setup) -> nn.Module:
        """The network in training mode, the same weights each time."""
        torch.manual_seed(0)
        with setup.device:
            return self.make().train()

    def examples(self, setup: Setup, n: int | None = None) -> tuple[Tensor, ...]:
        """A batch of n examples; by default, of the usual number."""
        with setup.device:
            return self.inputs(n or self.batch)


class _Language(nn.Module):
    """A model of transformers, which returns the loss of its own tokens."""

    def __init__(self, module: nn.Module, *, autocast: bool) -> None:
        super().__init__()
        self.module, self.autocast = module, autocast

    def forward(self, tokens: Tensor) -> Tensor:
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=self.autocast):
            loss: Tensor = self.module(input_ids=tokens, labels=tokens).loss
        return loss


class _Classes(nn.Module):
    """A classifier of timm and the cross entropy of its logits."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            return functional.cross_entropy(self.module(x), target)


def language(
    auto: str, kind: str, batch: int, length: int, *, dtype: torch.dtype = torch.float32, **config: Any
) -> Sized:
    """A model of transformers, which trains on its own tokens.

    Args:
        auto: the class of :mod:`transformers` that makes it.
        kind: name of its configuration.
        batch: the usual number of examples.
        length: tokens of an example.
        dtype: of the weights; float32 is trained in bfloat16 by autocast.
        **config: what differs from the published configuration.
    """

    def make() -> nn.Module:
        import transformers

        made = transformers.AutoConfig.for_model(kind, **config)
        made.use_cache = False
        module = getattr(transformers, auto).from_config(made).to(dtype)
        if auto == "AutoModelForCausalLM":
            module.loss_type = "ForCausalLM"  # it is that by default, after a warning that breaks graphs
        return _Language(module, autocast=dtype == torch.float32)

    return Sized(
        library="transformers",
        make=make,
        inputs=lambda n: (torch.randint(2, 30000, (n, length)),),
        batch=batch,
        checkpoint=lambda model: model.module.gradient_checkpointing_enable({"use_reentrant": False}),
    )


def _vision(name: str, batch: int, *, channels_last: bool = False) -> Sized:
    """A classifier of timm, for ImageNet."""

    def make() -> nn.Module:
        import timm

        model = _Classes(timm.create_model(name))
        return model.to(memory_format=torch.channels_last) if channels_last else model  # type: ignore[call-overload]

    def inputs(n: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, 3, 224, 224)
        return (x.to(memory_format=torch.channels_last) if channels_last else x), torch.randint(1000, (n,))

    return Sized(
        library="timm",
        make=make,
        inputs=inputs,
        batch=batch,
        checkpoint=lambda model: model.module.set_grad_checkpointing(True),
    )


NETWORKS: Mapping[str, Sized] = {
    "GPT-2": language("AutoModelForCausalLM", "gpt2", 8, 1024),
    "BERT base": language("AutoModelForMaskedLM", "bert", 32, 512),
    "Llama 3.2 1B": language("AutoModelForCausalLM", "llama", 2, 2048, dtype=torch.bfloat16, **LLAMA_1B),
    "ResNet-50": _vision("resnet50", 128, channels_last=True),
    "ViT-B/16": _vision("vit_base_patch16_224", 64),
    "ConvNeXt-T": _vision("convnext_tiny", 64),
    "Swin-T": _vision("swin_tiny_patch4_window7_224", 64),
}
"""By name."""

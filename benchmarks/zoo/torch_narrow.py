"""Networks of transformers at their published depth, so narrow that kernels take next to nothing.

A step takes as long as the host runs Python and autograd, and launches kernels. There is no dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from zoo.small_torch import unet

__all__ = ["NETWORKS", "Narrow"]

Narrow = tuple[nn.Module, Mapping[str, Tensor]]
"""A module that returns its loss, and the batch that it is called with."""

_TEXT = {"vocab_size": 64, "bos_token_id": 0, "eos_token_id": 0}
_NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


class _Loss(nn.Module):
    """A module of transformers that returns the loss alone."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, **batch: Tensor) -> Tensor:
        """The loss of a batch with labels."""
        loss: Tensor = self.inner(**batch).loss
        return loss


def _text(kind: str, **sizes: Any) -> Narrow:
    module = getattr(transformers, kind)
    tokens = torch.randint(0, _TEXT["vocab_size"], (1, 8))
    settings = {**_TEXT, "use_cache": False, **sizes}
    return _Loss(module(module.config_class(**settings)).train()), {"input_ids": tokens, "labels": tokens}


def _images(kind: str, side: int = 32, **sizes: Any) -> Narrow:
    module = getattr(transformers, kind)
    batch = {"pixel_values": torch.randn(2, 3, side, side), "labels": torch.tensor([0, 1])}
    return _Loss(module(module.config_class(num_labels=10, **sizes)).train()), batch


def _gpt2() -> Narrow:
    return _text("GPT2LMHeadModel", n_embd=32, n_layer=12, n_head=4, n_positions=16, **_NO_DROPOUT)


def _bert() -> Narrow:
    sizes = {"hidden_size": 32, "num_hidden_layers": 12, "num_attention_heads": 4, "intermediate_size": 64}
    return _text("BertForMaskedLM", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **sizes)


def _llama() -> Narrow:
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return _text("LlamaForCausalLM", hidden_size=32, num_hidden_layers=16, intermediate_size=64, **heads)


def _t5() -> Narrow:
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 6, "num_heads": 4}
    return _text("T5ForConditionalGeneration", decoder_start_token_id=0, dropout_rate=0.0, **sizes)


def _resnet() -> Narrow:
    return _images("ResNetForImageClassification", embedding_size=8, hidden_sizes=[8, 16, 32, 64])


def _convnext() -> Narrow:
    return _images("ConvNextForImageClassification", hidden_sizes=[8, 16, 32, 64])


def _swin() -> Narrow:
    shape = {"image_size": 64, "patch_size": 2, "embed_dim": 8, "window_size": 4}
    depth = {"depths": [2, 2, 6, 2], "num_heads": [1, 2, 4, 8], "drop_path_rate": 0.0}
    return _images("SwinForImageClassification", side=64, **shape, **depth)


class _Segmenting(nn.Module):
    """A network, and the mean of its squared result."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        """The loss of some images."""
        loss: Tensor = self.inner(x).square().mean()
        return loss


def _unet() -> Narrow:
    return _Segmenting(unet(width=4).module), {"x": torch.randn(2, 3, 32, 32)}


NETWORKS: Mapping[str, Callable[[], Narrow]] = {
    "ResNet-50": _resnet,
    "ConvNeXt-T": _convnext,
    "GPT-2": _gpt2,
    "BERT base": _bert,
    "Llama 3.2 1B": _llama,
    "Swin-T": _swin,
    "T5 small": _t5,
    "U-Net": _unet,
}
"""By the name of the network whose depth they have."""

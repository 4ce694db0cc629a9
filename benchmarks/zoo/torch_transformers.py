"""Transformers in PyTorch: shapes of published models, made by ``transformers``, weights uninitialised.

No dropout, no cache of keys and values; attention is one call of PyTorch's. ``small`` models have two blocks
of width 64 and eight tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    ViTConfig,
    ViTForImageClassification,
)
from transformers.initialization import no_init_weights

__all__ = ["LLAMA_1B", "TRANSFORMERS", "Step"]

Step = tuple[nn.Module, Tensor, Tensor]
"""A model that returns logits ``[n, classes, …]``, its input, and the targets."""

LLAMA_1B: Mapping[str, Any] = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
}
"""The configuration of Llama 3.2 1B."""

_SMALL_TEXT = {"vocab_size": 64, "max_position_embeddings": 32, "bos_token_id": 0, "eos_token_id": 0}


def gpt2(batch: int, small: bool) -> Step:
    """GPT-2 of 124 million parameters."""
    sizes = {"n_layer": 2, "n_embd": 64, "n_head": 4, **_SMALL_TEXT} if small else {}
    config = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, **sizes)
    return _text(GPT2LMHeadModel, config, batch, 8 if small else 1024)


def bert(batch: int, small: bool) -> Step:
    """BERT-base."""
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 256}
    shape = {**sizes, **_SMALL_TEXT} if small else {}
    config = BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **shape)
    return _text(BertForMaskedLM, config, batch, 8 if small else 512)


def llama(batch: int, small: bool) -> Step:
    """Llama 3.2 1B; the head is the embedding."""
    sizes = dict(LLAMA_1B)
    if small:
        sizes |= {
            "hidden_size": 64,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            **_SMALL_TEXT,
        }
    config = LlamaConfig(use_cache=False, **sizes)
    return _text(LlamaForCausalLM, config, batch, 8 if small else 2048)


def vit(batch: int, small: bool) -> Step:
    """ViT-B/16 with a class token."""
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 256}
    shape = {**sizes, "image_size": 32} if small else {}
    config = ViTConfig(num_labels=1000, **shape)
    image, targets = (batch, 3, config.image_size, config.image_size), torch.empty(batch, dtype=torch.long)
    return _built(ViTForImageClassification, config), torch.empty(image), targets


TRANSFORMERS: dict[str, Callable[[int, bool], Step]] = {one.__name__: one for one in (gpt2, bert, llama, vit)}
"""By name; the arguments are ``batch`` and ``small``."""


class _Logits(nn.Module):
    """The logits of a model, with the classes in the second dimension."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.model(inputs).logits
        return logits.movedim(-1, 1)


def _text(kind: type[PreTrainedModel], config: PreTrainedConfig, batch: int, length: int) -> Step:
    tokens, targets = (torch.empty(batch, length, dtype=torch.long) for _ in range(2))
    return _built(kind, config), tokens, targets


def _built(kind: type[PreTrainedModel], config: PreTrainedConfig) -> nn.Module:
    with no_init_weights():  # some rules read the drawn values, and fake tensors have none
        model = kind(config)
    model.tie_weights()
    return _Logits(model)

"""Networks whose largest ops decide their least memory: language models of large vocabularies, and others.

The language models have the shapes of transformers' own, with few and narrow layers: the logits, their
softmax and their gradient are most of a step. The image networks have no batch norm. All return their loss,
so that the loss is a part of what is planned. ``PUBLISHED`` has models at their published sizes, for the
device meta.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["IMAGES", "LANGUAGE", "PUBLISHED", "Images", "Language", "Loss", "Made"]

Made = tuple[nn.Module, Mapping[str, Tensor]]
"""A model that returns its loss, in training mode, and its keyword arguments."""


class Loss(nn.Module):
    """The loss alone, of a model that returns more."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Any) -> Tensor:
        """The loss of the model's output."""
        output = self.model(**inputs)
        loss: Tensor = output if isinstance(output, Tensor) else output.loss
        return loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """A language model of transformers, trained on its own tokens.

    Attributes:
        auto: the class of :mod:`transformers` that makes it.
        kind: name of its configuration.
        config: what differs from the usual configuration.
        shape: examples and tokens.
        dtype: of the weights.
        head: where its last layer is, which makes the logits.
    """

    auto: str
    kind: str
    config: Mapping[str, Any]
    shape: tuple[int, int]
    dtype: torch.dtype = torch.float32
    head: str = "lm_head"

    def model(self) -> nn.Module:
        """The model of transformers, in training mode."""
        import transformers

        made = transformers.AutoConfig.for_model(self.kind, **self.config)
        made.use_cache = False
        model: nn.Module = getattr(transformers, self.auto).from_config(made, dtype=self.dtype)
        if self.auto == "AutoModelForCausalLM":
            model.loss_type = "ForCausalLM"  # type: ignore[assignment]  # the default, after a warning
        return model.train()

    def __call__(self) -> Made:
        """The model that returns its loss, and a batch."""
        model = self.model()
        words = torch.randint(2, model.config.vocab_size, self.shape)  # type: ignore[union-attr]
        return Loss(model).train(), {"input_ids": words, "labels": words}


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """A classifier of transformers.

    Attributes:
        kind: name of its configuration.
        batch: images.
        config: what differs from the usual configuration.
        size: of an image, in pixels along each side.
    """

    kind: str
    batch: int
    config: Mapping[str, Any]
    size: int = 224

    def __call__(self) -> Made:
        """The model that returns its loss, and a batch."""
        import transformers

        made = transformers.AutoConfig.for_model(self.kind, num_labels=1000, **self.config)
        model = transformers.AutoModelForImageClassification.from_config(made)
        images = torch.randn(self.batch, 3, self.size, self.size)
        return Loss(model).train(), {"pixel_values": images, "labels": torch.randint(1000, (self.batch,))}


def _denoiser() -> Made:
    from zoo.traces import Denoiser

    images, noise = torch.randn(2, 16, 3, 64, 64)
    return Loss(Denoiser(width=32)).train(), {"images": images, "noise": noise, "time": torch.randn(16, 32)}


def _causal(kind: str, shape: tuple[int, int], dtype: torch.dtype = torch.float32, **config: Any) -> Language:
    return Language(auto="AutoModelForCausalLM", kind=kind, shape=shape, dtype=dtype, config=config)


_GPT2 = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
_NARROW = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "tie_word_embeddings": True,
    "attention_dropout": 0.0,
}
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_T5 = {"dropout_rate": 0.0, "decoder_start_token_id": 0, "pad_token_id": 0}

LANGUAGE: Mapping[str, Language] = {
    "GPT-2-like": _causal("gpt2", (1, 1024), n_layer=4, n_embd=256, n_head=4, vocab_size=32000, **_GPT2),
    "Llama-like": _causal("llama", (1, 512), vocab_size=128256, **_NARROW),
    "Qwen3-like": _causal("qwen3", (1, 512), vocab_size=151936, **_NARROW),
    "Gemma-2-like": _causal("gemma2", (1, 512), vocab_size=256000, **_NARROW),
    "T5-like": Language(
        auto="AutoModelForSeq2SeqLM",
        kind="t5",
        shape=(2, 512),
        config={"vocab_size": 32128, "d_model": 192, "d_kv": 48, "d_ff": 512, "num_layers": 2, "num_heads": 4}
        | _T5,
    ),
    "BERT-like": Language(
        auto="AutoModelForMaskedLM",
        kind="bert",
        shape=(2, 512),
        head="cls.predictions.decoder",
        config={
            "vocab_size": 50368,
            "hidden_size": 192,
            "intermediate_size": 768,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
        }
        | _NO_DROPOUT,
    ),
}
"""By name, small enough for a CPU."""

IMAGES: Mapping[str, Callable[[], Made]] = {
    "ViT-like": Images(
        kind="vit",
        batch=16,
        config={
            "hidden_size": 192,
            "intermediate_size": 768,
            "num_hidden_layers": 4,
            "num_attention_heads": 3,
            **_NO_DROPOUT,
        },
    ),
    "ConvNeXt-like": Images(
        kind="convnext",
        batch=16,
        size=128,
        config={"depths": [1, 1, 2, 1], "hidden_sizes": [48, 96, 192, 384], "drop_path_rate": 0.0},
    ),
    "U-Net": _denoiser,
}
"""By name, small enough for a CPU."""

_LLAMA = {
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "tie_word_embeddings": True,
    "max_position_embeddings": 131072,
}
_QWEN3 = {
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "tie_word_embeddings": True,
}

PUBLISHED: Mapping[str, Callable[[], Made]] = {
    "GPT-2": _causal("gpt2", (16, 1024), torch.bfloat16, **_GPT2),
    "Llama 3.2 1B": _causal("llama", (8, 2048), torch.bfloat16, **_LLAMA),
    "Qwen3 0.6B": _causal("qwen3", (8, 2048), torch.bfloat16, **_QWEN3),
    "Gemma 2 2B": _causal("gemma2", (4, 2048), torch.bfloat16, attention_dropout=0.0),
    "T5 base": Language(
        auto="AutoModelForSeq2SeqLM",
        kind="t5",
        shape=(16, 512),
        dtype=torch.bfloat16,
        config={"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12}
        | {**_T5, "attn_implementation": "eager"},
    ),
    "BERT base": Language(
        auto="AutoModelForMaskedLM",
        kind="bert",
        shape=(16, 512),
        dtype=torch.bfloat16,
        head="cls.predictions.decoder",
        config=_NO_DROPOUT,
    ),
    "ViT-B/16": Images(kind="vit", batch=64, config=_NO_DROPOUT),
    "ResNet-50": Images(kind="resnet", batch=64, config={}),
}
"""By name; made on the device meta."""

"""One thread; a small language model and its data; a law for losses and weights, plain and planned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

torch.set_num_threads(1)

# Without pieces, whose sums round differently.
SETTINGS: dict[str, Any] = {"cost_model": "flops", "workspaces": True, "time_limit": 2, "split": False}


class Tokens(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Random sentences, each its own label; of 32 tokens, or of 20 to 32."""

    def __init__(self, *, even: bool = True) -> None:
        self.even = even

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(3, 64, (32 if self.even else 20 + index % 13,), generator=generator)
        return {"input_ids": tokens, "labels": tokens}


@pytest.fixture
def tokens() -> type[Tokens]:
    return Tokens


@pytest.fixture
def language_model() -> Callable[..., nn.Module]:
    """A GPT-2 of two layers with seeded weights; keyword arguments change its configuration."""
    transformers = pytest.importorskip("transformers")

    def make(**config: Any) -> nn.Module:
        torch.manual_seed(0)
        sizes = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 32}
        ends = {
            "bos_token_id": 0,
            "eos_token_id": 1,
            "pad_token_id": 2,
            "use_cache": False,
            "loss_type": "ForCausalLM",
        }
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**{**sizes, **ends, **config}))
        model.loss_type = "ForCausalLM"  # it is that by default, after a warning that breaks graphs
        return model

    return make


@pytest.fixture
def settings() -> dict[str, Any]:
    """Quick plans with bounded peaks."""
    return dict(SETTINGS)

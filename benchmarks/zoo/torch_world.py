"""Small architectures of transformers, timm, diffusers and PyTorch Geometric, with random weights.

Each is a module, its inputs and its loss. Activations outweigh parameters, as they do at the sizes that
people train; a step takes about a second on one core.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

__all__ = ["ARCHITECTURES", "LARGER", "Architecture", "Trained"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A network of a library.

    Attributes:
        library: name of its distribution.
        make: makes the module, its keyword arguments, and the loss of its output.
        own: turns on the library's own gradient checkpointing; None = it has none.
    """

    library: str
    make: Callable[[], tuple[nn.Module, Mapping[str, Any], Callable[[Any], Tensor]]]
    own: Callable[[Any], object] | None = None


class Trained(nn.Module):
    """A network that returns its loss, so that the loss is a part of what is planned."""

    def __init__(self, module: nn.Module, loss: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.module, self.loss = module, loss

    def forward(self, **inputs: Any) -> Tensor:
        """The loss of the module's output."""
        return self.loss(self.module(**inputs))


def _declare_vision_ops() -> None:
    """Make ``torchvision``, which timm imports, importable without its compiled ops.

    Beside PyTorch's CPU build, torchvision from the package index can't load them, and fails at its import.
    """
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor a, Tensor b, float c) -> Tensor")


def _ids(*shape: int, below: int = 256) -> Tensor:
    return torch.randint(2, below, shape)


def _of_output(output: Any) -> Tensor:
    return output.loss


_WORDS = {"vocab_size": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
_ROTARY = {
    **_WORDS,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
_BERT = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
}


def _transformer(
    auto: str, kind: str, inputs: Callable[[], Mapping[str, Any]], **config: Any
) -> Architecture:
    """A model of transformers, made from a configuration."""

    def make() -> tuple[nn.Module, Mapping[str, Any], Callable[[Any], Tensor]]:
        _declare_vision_ops()
        import transformers

        made = transformers.AutoConfig.for_model(kind, **config)
        made.use_cache = False
        return getattr(transformers, auto).from_config(made), inputs(), _of_output

    return Architecture(
        library="transformers", make=make, own=lambda module: module.gradient_checkpointing_enable()
    )


def _causal(kind: str, batch: int = 8, length: int = 128, **config: Any) -> Architecture:
    def inputs() -> Mapping[str, Any]:
        words = _ids(batch, length)
        return {"input_ids": words, "labels": words}

    return _transformer("AutoModelForCausalLM", kind, inputs, **config)


def _masked(kind: str, **config: Any) -> Architecture:
    def inputs() -> Mapping[str, Any]:
        words = _ids(8, 128)
        return {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": words}

    return _transformer("AutoModelForMaskedLM", kind, inputs, **config)


def _translation(kind: str, **config: Any) -> Architecture:
    return _transformer(
        "AutoModelForSeq2SeqLM", kind, lambda: {"input_ids": _ids(8, 96), "labels": _ids(8, 96)}, **config
    )


def _timm(name: str, batch: int = 8, size: int = 64, **settings: Any) -> Architecture:
    """An image classifier of timm."""

    def make() -> tuple[nn.Module, Mapping[str, Any], Callable[[Any], Tensor]]:
        _declare_vision_ops()
        import timm

        module = timm.create_model(name, num_classes=10, **settings)
        labels = torch.randint(10, (batch,))
        return module, {"x": torch.randn(batch, 3, size, size)}, lambda scores: cross_entropy(scores, labels)

    return Architecture(library="timm", make=make, own=lambda module: module.set_grad_checkpointing(True))


def _diffusers(
    name: str,
    inputs: Callable[[], Mapping[str, Any]],
    channels: int,
    size: int,
    batch: int = 4,
    **config: Any,
) -> Architecture:
    """A denoiser or autoencoder of diffusers."""

    def make() -> tuple[nn.Module, Mapping[str, Any], Callable[[Any], Tensor]]:
        _declare_vision_ops()
        import diffusers

        module = getattr(diffusers, name)(**config)
        wanted = torch.randn(batch, channels, size, size)
        return module, inputs(), lambda output: mse_loss(output.sample, wanted)

    return Architecture(
        library="diffusers", make=make, own=lambda module: module.enable_gradient_checkpointing()
    )


def _geometric(name: str, **settings: Any) -> Architecture:
    """A graph network of PyTorch Geometric, on a random graph of 2,000 nodes."""

    def make() -> tuple[nn.Module, Mapping[str, Any], Callable[[Any], Tensor]]:
        from torch_geometric.nn import models

        module = getattr(models, name)(32, 64, num_layers=4, out_channels=8, dropout=0.1, **settings)
        labels = torch.randint(8, (2000,))
        inputs = {"x": torch.randn(2000, 32), "edge_index": torch.randint(2000, (2, 8000))}
        return module, inputs, lambda scores: cross_entropy(scores, labels)

    return Architecture(library="torch-geometric", make=make)


def _noisy(
    channels: int, size: int, batch: int = 4, **more: Callable[[], Tensor]
) -> Callable[[], Mapping[str, Any]]:
    def inputs() -> Mapping[str, Any]:
        sample = {"sample": torch.randn(batch, channels, size, size), "timestep": torch.arange(batch)}
        return sample | {name: made() for name, made in more.items()}

    return inputs


def _swin(batch: int) -> Architecture:
    return _timm(
        "swin_tiny_patch4_window7_224",
        batch=batch,
        size=56,
        img_size=56,
        embed_dim=48,
        depths=(1, 1, 2, 1),
        num_heads=(2, 4, 8, 8),
    )


def _unet(batch: int) -> Architecture:
    return _diffusers(
        "UNet2DModel",
        _noisy(3, 32, batch),
        3,
        32,
        batch,
        sample_size=32,
        block_out_channels=(32, 64),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=8,
    )


ARCHITECTURES: Mapping[str, Architecture] = {
    "GPT-2": _causal("gpt2", n_embd=64, n_layer=4, n_head=4, n_positions=128, **_WORDS),
    "Llama": _causal("llama", **_ROTARY),
    "Qwen3": _causal("qwen3", **_ROTARY, head_dim=16),
    "Gemma 2": _causal("gemma2", **_ROTARY, head_dim=16),
    "Mixtral": _causal("mixtral", **_ROTARY, num_local_experts=4),
    "Mamba": _causal("mamba", batch=4, length=64, hidden_size=64, num_hidden_layers=3, **_WORDS),
    "BERT": _masked("bert", **_BERT),
    "DeBERTa v2": _masked("deberta-v2", **_BERT, relative_attention=True, pos_att_type=["p2c", "c2p"]),
    "ModernBERT": _masked(
        "modernbert", **_BERT, pad_token_id=0, bos_token_id=1, eos_token_id=1, cls_token_id=1, sep_token_id=1
    ),
    "T5": _translation(
        "t5",
        d_model=64,
        d_ff=256,
        d_kv=16,
        num_layers=3,
        num_heads=4,
        vocab_size=256,
        decoder_start_token_id=0,
    ),
    "BART": _translation(
        "bart",
        d_model=64,
        encoder_layers=3,
        decoder_layers=3,
        encoder_ffn_dim=256,
        decoder_ffn_dim=256,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        decoder_start_token_id=0,
        **_WORDS,
    ),
    "Whisper": _transformer(
        "AutoModelForSpeechSeq2Seq",
        "whisper",
        lambda: {"input_features": torch.randn(4, 80, 256), "labels": _ids(4, 32)},
        d_model=64,
        encoder_layers=3,
        decoder_layers=3,
        encoder_ffn_dim=256,
        decoder_ffn_dim=256,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        max_source_positions=128,
        decoder_start_token_id=0,
        **_WORDS,
    ),
    "Wav2Vec2": _transformer(
        "AutoModelForCTC",
        "wav2vec2",
        lambda: {"input_values": torch.randn(4, 6400), "labels": _ids(4, 8, below=32)},
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        vocab_size=32,
        conv_dim=[32] * 7,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        mask_time_prob=0.0,
        mask_feature_prob=0.0,
        layerdrop=0.0,
    ),
    "CLIP": _transformer(
        "AutoModelForZeroShotImageClassification",
        "clip",
        lambda: {"input_ids": _ids(8, 32), "pixel_values": torch.randn(8, 3, 64, 64), "return_loss": True},
        text_config={
            "hidden_size": 64,
            "intermediate_size": 256,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "max_position_embeddings": 32,
            **_WORDS,
        },
        vision_config={
            "hidden_size": 64,
            "intermediate_size": 256,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "image_size": 64,
            "patch_size": 8,
        },
    ),
    "SegFormer": _transformer(
        "AutoModelForSemanticSegmentation",
        "segformer",
        lambda: {"pixel_values": torch.randn(4, 3, 64, 64), "labels": torch.randint(5, (4, 64, 64))},
        num_labels=5,
        hidden_sizes=[16, 32, 64, 64],
        depths=[1, 1, 1, 1],
        decoder_hidden_size=64,
    ),
    "DETR": _transformer(
        "AutoModelForObjectDetection",
        "detr",
        lambda: {
            "pixel_values": torch.randn(4, 3, 64, 64),
            "labels": [{"class_labels": torch.tensor([1, 2]), "boxes": torch.rand(2, 4)} for _ in range(4)],
        },
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config={
            "model_type": "resnet",
            "embedding_size": 16,
            "hidden_sizes": [16, 32],
            "depths": [1, 1],
            "layer_type": "basic",
            "out_features": ["stage2"],
        },
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        num_queries=16,
        num_labels=5,
    ),
    "ResNet-10": _timm("resnet10t", batch=32),
    "EfficientNet-B0": _timm("efficientnet_b0", batch=16),
    "MobileNet v3": _timm("mobilenetv3_small_050", batch=32),
    "ConvNeXt": _timm("convnext_atto", batch=16),
    "ViT": _timm("vit_tiny_patch16_224", batch=32, size=64, img_size=64, patch_size=8, embed_dim=96, depth=4),
    "Swin": _swin(batch=16),
    "ResMLP": _timm("resmlp_12_224", batch=16, size=128, img_size=128),
    "UNet2D": _unet(batch=4),
    "UNet2D, conditional": _diffusers(
        "UNet2DConditionModel",
        _noisy(4, 32, encoder_hidden_states=lambda: torch.randn(4, 16, 32)),
        4,
        32,
        sample_size=32,
        block_out_channels=(32, 64),
        layers_per_block=1,
        cross_attention_dim=32,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        norm_num_groups=8,
        attention_head_dim=8,
    ),
    "DiT": _diffusers(
        "DiTTransformer2DModel",
        lambda: {
            "hidden_states": torch.randn(4, 4, 32, 32),
            "timestep": torch.arange(4),
            "class_labels": torch.arange(4),
        },
        4,
        32,
        num_attention_heads=4,
        attention_head_dim=16,
        in_channels=4,
        out_channels=4,
        num_layers=4,
        sample_size=32,
        patch_size=2,
        num_embeds_ada_norm=10,
    ),
    "AutoencoderKL": _diffusers(
        "AutoencoderKL",
        lambda: {"sample": torch.randn(4, 3, 32, 32)},
        3,
        32,
        block_out_channels=(16, 32),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=8,
    ),
    "GCN": _geometric("GCN"),
    "GraphSAGE": _geometric("GraphSAGE"),
    "GAT": _geometric("GAT"),
    "GIN": _geometric("GIN"),
}
"""By name, in the order of the table."""

LARGER: Mapping[str, Architecture] = {"Swin": _swin(batch=96), "UNet2D": _unet(batch=24)}
"""Networks with larger batches: their parameters and gradients take less than a third of the plain peak."""

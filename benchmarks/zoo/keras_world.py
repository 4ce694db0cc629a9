"""Networks as users of Keras train them, compiled for ``fit``, with random weights and a batch.

They are from ``keras.applications`` (one of each family) and KerasHub, of smaller sizes; models with a
training step of their own; recurrent ones; and habits of ``compile``. Activations outweigh parameters where
the family allows it; a step takes about a second on one core.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import keras
import numpy as np
from keras import layers

from zoo import keras_steps

__all__ = ["HUB", "NETWORKS", "Batch", "Made"]

Model = Any  # Keras has no types
Batch = tuple[Any, ...]
"""Inputs, and labels where the training step takes any."""
Made = tuple[Model, Batch]

_WORDS, _LENGTH, _CLASSES = 500, 64, 10
_LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
_TRANSFORMER = {"vocabulary_size": _WORDS, "num_layers": 4, "hidden_dim": 64, "intermediate_dim": 256}
_ROTARY = {**_TRANSFORMER, "num_query_heads": 4, "num_key_value_heads": 2}
_VIT = {"image_shape": (64, 64, 3), "patch_size": (8, 8), "num_layers": 4, "num_heads": 4, "hidden_dim": 96}


def application(name: str, *, image: int = 64, batch: int = 16, **compiled: Any) -> Made:
    """A network of ``keras.applications``."""
    sizes = {"weights": None, "input_shape": (image, image, 3), "classes": _CLASSES}
    model = getattr(keras.applications, name)(**sizes, classifier_activation=None)
    return _compiled(model, **compiled), (_images(batch, image), _labels(batch))


def hub_text(task: str, sizes: Mapping[str, Any], *, backbone: str | None = None, **compiled: Any) -> Made:
    """A network of KerasHub on tokens; a label for each token, or for each text if it is a classifier."""
    import keras_hub

    family = getattr(keras_hub.models, backbone or task.removesuffix("CausalLM") + "Backbone")
    own = {"num_classes": _CLASSES} if task.endswith("Classifier") else {}
    model = getattr(keras_hub.models, task)(backbone=family(**sizes), preprocessor=None, **own)
    return _compiled(model, **compiled), _texts(model, 16, each=not own)


def hub_vit(**compiled: Any) -> Made:
    """A vision transformer of KerasHub."""
    import keras_hub

    backbone = keras_hub.models.ViTBackbone(**_VIT, mlp_dim=384, dropout_rate=0.1)
    model = keras_hub.models.ViTImageClassifier(backbone=backbone, num_classes=_CLASSES, preprocessor=None)
    return _compiled(model, **compiled), (_images(32, 64), _labels(32))


def hub_segformer() -> Made:
    """SegFormer of KerasHub: a mixed transformer, and a label for each pixel."""
    import keras_hub

    encoder = keras_hub.models.MiTBackbone(
        layerwise_depths=[1, 1, 1, 1],
        num_layers=4,
        layerwise_num_heads=[1, 2, 4, 8],
        layerwise_sr_ratios=[8, 4, 2, 1],
        max_drop_path_rate=0.1,
        layerwise_patch_sizes=[7, 3, 3, 3],
        layerwise_strides=[4, 2, 2, 2],
        hidden_dims=[16, 32, 64, 128],
        image_shape=(96, 96, 3),
    )
    backbone = keras_hub.models.SegFormerBackbone(image_encoder=encoder, projection_filters=64)
    model = keras.Model(backbone.input, layers.UpSampling2D(4)(layers.Conv2D(4, 1)(backbone.output)))
    return _compiled(model), (_images(8, 96), _random().integers(0, 4, (8, 96, 96)))


def hub_pairs(name: str, sizes: Mapping[str, Any]) -> Made:
    """An encoder with a decoder of KerasHub, and a label for each token of the decoder."""
    import keras_hub

    backbone = getattr(keras_hub.models, name)(**sizes)
    left = backbone.output["decoder_sequence_output"]
    model = keras.Model(backbone.input, layers.Dense(_WORDS)(left))
    return _compiled(model), _texts(model, 16, each=True)


def hub_lora() -> Made:
    """GPT-2 with low-rank updates of its attention, and everything else frozen."""
    model, batch = hub_text("GPT2CausalLM", {**_TRANSFORMER, "num_heads": 4})
    model.backbone.enable_lora(4)
    return _compiled(model), batch


def recurrent(cell: str) -> Made:
    """Two bidirectional layers on words."""
    kind = getattr(layers, cell)
    stack = [
        layers.Embedding(_WORDS, 64),
        layers.Bidirectional(kind(64, return_sequences=True)),
        layers.Dropout(0.2),
        layers.Bidirectional(kind(64)),
        layers.Dense(_CLASSES),
    ]
    model = keras.Sequential([keras.Input((_LENGTH,), dtype="int32"), *stack])
    return _compiled(model), (_random().integers(0, _WORDS, (64, _LENGTH)), _labels(64))


def unet(*, image: int = 64, batch: int = 16, width: int = 16) -> Made:
    """Down, up, and a skip connection across each level, with dropout and batch norm."""
    inputs = x = keras.Input((image, image, 3))
    skips = []
    for level in range(3):
        skips.append(_double(x, width << level))
        x = layers.MaxPooling2D()(skips[-1])
    x = layers.Dropout(0.2)(_double(x, width << 3))
    for level in reversed(range(3)):
        x = layers.Conv2DTranspose(width << level, 2, strides=2)(x)
        x = _double(layers.Concatenate()([x, skips[level]]), width << level)
    model = keras.Model(inputs, layers.Conv2D(4, 1)(x))
    return _compiled(model), (_images(batch, image), _random().integers(0, 4, (batch, image, image)))


def own(kind: Callable[[], Model], *, images: int = 1) -> Made:
    """A model with a training step of its own."""
    model = kind()
    model.compile("adam")
    return model, tuple(_images(32, 32, seed=k) for k in range(images))


def with_policy(policy: str, make: Callable[[], Made]) -> Made:
    """The same network in mixed precision."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        return make()
    finally:
        keras.config.set_dtype_policy(before)


def _double(x: Any, channels: int) -> Any:
    for _ in range(2):
        x = layers.Conv2D(channels, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    return x


def _compiled(model: Model, optimizer: Any = "adam", **compiled: Any) -> Model:
    model.compile(optimizer() if callable(optimizer) else optimizer, _LOSS, jit_compile=False, **compiled)
    return model


def _random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def _images(batch: int, image: int, *, seed: int = 0) -> Any:
    return _random(seed).normal(size=(batch, image, image, 3)).astype("float32")


def _labels(batch: int) -> Any:
    return _random(1).integers(0, _CLASSES, batch)


def _texts(model: Model, batch: int, *, each: bool) -> Batch:
    """Values for all inputs of a model, by their names, and labels."""
    made = {}
    for name, spec in model.input.items():
        shape = (batch, *(size or _LENGTH for size in spec.shape[1:]))
        if "mask" in name:
            made[name] = np.ones(shape, bool)
        elif len(shape) > 2:
            made[name] = _random().normal(size=shape).astype("float32")
        else:
            below = 2 if "segment" in name else _WORDS
            made[name] = _random().integers(0, below, shape).astype("int32")
    return made, _random(1).integers(0, _WORDS, (batch, _LENGTH)) if each else _labels(batch)


_Make = Callable[[], Made]
_GPT2 = partial(hub_text, "GPT2CausalLM", {**_TRANSFORMER, "num_heads": 4})
_APPLICATIONS: Mapping[str, _Make] = {
    name: partial(application, name, **sizes)
    for name, sizes in {
        "VGG19": {},
        "ResNet50": {},
        "ResNet50V2": {},
        "InceptionV3": {"image": 96},
        "InceptionResNetV2": {"image": 96, "batch": 8},
        "Xception": {"image": 96},
        "MobileNet": {"image": 96},
        "MobileNetV2": {"image": 96},
        "MobileNetV3Small": {"image": 128},
        "DenseNet121": {},
        "NASNetMobile": {},
        "EfficientNetB0": {},
        "EfficientNetV2B0": {},
        "ConvNeXtTiny": {"batch": 8},
    }.items()
}
_OWN: Mapping[str, _Make] = {
    "U-Net": unet,
    "bidirectional LSTM": partial(recurrent, "LSTM"),
    "bidirectional GRU": partial(recurrent, "GRU"),
    "VAE": partial(own, keras_steps.VAE),
    "GAN": partial(own, keras_steps.GAN),
    "siamese": partial(own, keras_steps.Siamese, images=2),
    "diffusion": partial(own, keras_steps.Diffusion),
}
_HABITS: Mapping[str, _Make] = {
    "EfficientNetB0, mixed_bfloat16": partial(
        with_policy, "mixed_bfloat16", partial(application, "EfficientNetB0")
    ),
    "MobileNet, mixed_float16": partial(with_policy, "mixed_float16", partial(application, "MobileNet")),
    "MobileNet, averaged weights": partial(
        application, "MobileNet", image=96, optimizer=partial(keras.optimizers.AdamW, use_ema=True)
    ),
    "MobileNet, 2 steps accumulated": partial(
        application,
        "MobileNet",
        image=96,
        optimizer=partial(keras.optimizers.Adam, gradient_accumulation_steps=2),
    ),
    "MobileNet, 2 steps per execution": partial(application, "MobileNet", image=96, steps_per_execution=2),
}
HUB: Mapping[str, _Make] = {
    "BERT": partial(
        hub_text, "BertTextClassifier", {**_TRANSFORMER, "num_heads": 4}, backbone="BertBackbone"
    ),
    "DeBERTaV3": partial(
        hub_text,
        "DebertaV3TextClassifier",
        {**_TRANSFORMER, "num_heads": 4, "bucket_size": 32, "max_sequence_length": _LENGTH},
        backbone="DebertaV3Backbone",
    ),
    "GPT-2": _GPT2,
    "GPT-2, LoRA": hub_lora,
    "GPT-2, mixed_bfloat16": partial(with_policy, "mixed_bfloat16", _GPT2),
    "Llama": partial(hub_text, "LlamaCausalLM", _ROTARY),
    "Qwen3": partial(hub_text, "Qwen3CausalLM", {**_ROTARY, "head_dim": 16}),
    "Gemma": partial(hub_text, "GemmaCausalLM", {**_ROTARY, "head_dim": 16}),
    "Mixtral": partial(hub_text, "MixtralCausalLM", {**_ROTARY, "num_experts": 4}),
    "T5": partial(hub_pairs, "T5Backbone", {**_TRANSFORMER, "num_layers": 2, "num_heads": 4}),
    "Whisper": partial(
        hub_pairs,
        "WhisperBackbone",
        {
            **_TRANSFORMER,
            "num_layers": 2,
            "num_heads": 4,
            "num_mels": 40,
            "max_encoder_sequence_length": 128,
            "max_decoder_sequence_length": _LENGTH,
        },
    ),
    "ViT": hub_vit,
    "SegFormer": hub_segformer,
}
"""The networks that need KerasHub."""
NETWORKS: Mapping[str, _Make] = {**HUB, **_OWN, **_HABITS, **_APPLICATIONS}
"""Name ↦ makes a compiled model and a batch, always the same after ``keras.utils.set_random_seed``."""

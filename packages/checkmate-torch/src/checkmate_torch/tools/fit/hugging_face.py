"""Models of transformers from a config.json, as factories for ``fit``; adapters of peft on them.

    config.json ↦ ((batch, sequence) ↦ (model, inputs, loss))

Nothing is loaded over the network, and no code of a repository is run. A step is that of transformers'
``Trainer``: without the cache of keys and values, and with the loss alone from the model's output, so that
the logits are dropped before the backward pass.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from checkmate.errors import FormatError, MissingDistributionError, install_hint
from checkmate.framework import ProgramError
from checkmate_torch.private import unfaked
from checkmate_torch.tools.fit.optimizers import settings_in

__all__ = ["hugging_face_factory"]

_WORDS = (
    *("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration", "ForSeq2SeqLM"),
    "ForTokenClassification",
)
"""Ends of the names of classes with a label for each word."""
_LORA = {"r": "r", "alpha": "lora_alpha", "dropout": "lora_dropout", "targets": "target_modules"}
"""Settings of ``lora``, and their names in peft."""


def hugging_face_factory(
    config: str | os.PathLike[str],
    *,
    head: str | None = None,
    dtype: torch.dtype | None = None,
    lora: str | None = None,
) -> Any:
    """The factory of a model of transformers, with random weights and without padding.

    Args:
        config: a ``config.json`` of transformers, or its folder.
        head: class in transformers, as ``"AutoModelForCausalLM"``; None = the first of the config's
            ``architectures``.
        dtype: of the parameters; None = that of the config, or float32. Adapters are float32, as peft makes
            them.
        lora: settings of adapters, as ``"r=16,targets=q_proj+v_proj"``, of ``r``, ``alpha``, ``dropout`` and
            ``targets`` (``all-linear`` for all linear layers); None = all parameters are trained.

    Raises:
        FormatError: if the file is no config of a model that transformers knows.
        MissingDistributionError: if transformers or peft is not installed.
        ProgramError: if there is no such head, or its inputs are not known.
        ValueError: if the settings of ``lora`` can't be read.
    """
    facts = _facts_in(Path(config))
    transformers = _imported("transformers")
    name = head or next(iter(facts.get("architectures") or []), None)
    if name is None:
        raise ProgramError(f"{config} names no architecture: name the head, as AutoModelForCausalLM")
    made = getattr(transformers, name, None)
    if not isinstance(made, type):
        raise ProgramError(
            f"transformers {transformers.__version__} has no class {name!r}: name another head"
        )
    adapters = None if lora is None else _lora_settings(lora)
    inputs = _inputs_of(name, facts)

    def model() -> nn.Module:
        settings = transformers.AutoConfig.for_model(**facts)
        settings.dtype = dtype or settings.dtype or torch.float32
        settings.use_cache = False
        build = made.from_config if name.startswith("Auto") else made  # type: ignore[attr-defined]
        with unfaked(), torch.device("meta"), _default(settings.dtype):
            network: nn.Module = build(settings).train()
            return network if adapters is None else _with_adapters(network, adapters)

    def of_words(batch: int, sequence: int) -> tuple[nn.Module, object, Any]:
        return model(), inputs(batch, sequence), _loss_of

    def of_pictures(batch: int) -> tuple[nn.Module, object, Any]:
        return model(), inputs(batch), _loss_of

    return of_pictures if name.endswith("ForImageClassification") else of_words


@contextmanager
def _default(dtype: torch.dtype | str) -> Iterator[None]:
    """Make a dtype the default of new tensors, within the block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype) if isinstance(dtype, str) else dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _facts_in(path: Path) -> dict[str, Any]:
    """Read and check a config."""
    path = path / "config.json" if path.is_dir() else path
    try:
        facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FormatError(f"{path} is no JSON: {error}") from error
    known = _imported("transformers").CONFIG_MAPPING
    kind = facts.get("model_type") if isinstance(facts, dict) else None  # type: ignore[redundant-expr]
    if kind not in known:
        raise FormatError(
            f"{path} has the model_type {kind!r}, unknown to transformers: write a factory for --torch"
        )
    if "quantization_config" in facts:
        raise FormatError(
            f"{path} has a quantization_config, but quantized weights are not counted: take the config "
            "of the model before quantization"
        )
    return facts


def _inputs_of(name: str, facts: Mapping[str, Any]) -> Any:
    """The function that makes the inputs of a head."""
    if name.endswith(_WORDS):
        return _words
    if name.endswith("ForSequenceClassification"):
        return lambda batch, length: {**_words(batch, length), "labels": _ids(batch)}
    if name.endswith("ForQuestionAnswering"):
        ends = ("start_positions", "end_positions")
        return lambda batch, length: {"input_ids": _ids(batch, length)} | {x: _ids(batch) for x in ends}
    if name.endswith("ForImageClassification"):
        size = facts.get("image_size", 224)
        sides = tuple(size) if isinstance(size, Sequence) else (size, size)
        channels = facts.get("num_channels", 3)
        return lambda batch: {"pixel_values": torch.zeros(batch, channels, *sides), "labels": _ids(batch)}
    raise ProgramError(
        f"the inputs of {name} are not known: name another head, or write a factory for --torch"
    )


def _words(batch: int, length: int) -> dict[str, Tensor]:
    return {"input_ids": _ids(batch, length), "labels": _ids(batch, length)}


def _ids(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.long)


def _loss_of(output: Any) -> Tensor:
    loss: Tensor = output.loss
    return loss


def _lora_settings(text: str) -> dict[str, Any]:
    """The settings of adapters, with peft's names."""
    given = settings_in(text)
    if unknown := given.keys() - _LORA.keys():
        raise ValueError(f"there is no setting {min(unknown)!r} of lora: the settings are {', '.join(_LORA)}")
    targets = given.get("targets")
    if targets is not None and targets != "all-linear":
        given["targets"] = str(targets).split("+")
    return {_LORA[name]: value for name, value in given.items()}


def _with_adapters(network: nn.Module, settings: Mapping[str, Any]) -> nn.Module:
    peft = _imported("peft")
    try:
        adapted: nn.Module = peft.get_peft_model(network, peft.LoraConfig(**settings))
    except ValueError as error:
        raise ProgramError(f"peft can't add these adapters: {error}") from error
    return adapted


def _imported(name: str) -> Any:
    """Import an optional library, or raise an error that says how to install it."""
    from importlib import import_module

    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise MissingDistributionError(f"that needs {name}: {install_hint(name)}", name=name) from error

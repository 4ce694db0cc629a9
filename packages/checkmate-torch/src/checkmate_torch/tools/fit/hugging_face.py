"""Models of transformers from a config.json, as factories for ``fit``; adapters of peft on them.

    config.json ↦ ((batch, sequence) ↦ (model, inputs, loss))

Nothing is loaded over the network, and no code of a repository is run: models are made of a config's
:mod:`~checkmate_torch.tools.fit.plain_settings`. A step is that of transformers'
``Trainer``: without the cache of keys and values, and with the loss alone from the model's output, so that
the logits are dropped before the backward pass.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook

from checkmate.errors import CheckmateError, FormatError, MissingDistributionError, install_hint
from checkmate.framework import ProgramError
from checkmate_torch.private import unfaked
from checkmate_torch.tools.fit.optimizers import settings_in
from checkmate_torch.tools.fit.plain_settings import read_config

__all__ = ["hugging_face_factory", "sentences"]

_WORDS = (
    *("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration", "ForSeq2SeqLM"),
    "ForTokenClassification",
)
"""Ends of the names of classes with a label for each word."""
_LORA = {"r": "r", "alpha": "lora_alpha", "dropout": "lora_dropout", "targets": "target_modules"}
"""Settings of ``lora``, and their names in peft."""
_MOST_PARTS = 2**17


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
    name = head or _head_in(facts, config)
    inputs = _inputs_of(name, facts)
    build = _builder(name)
    adapters = None if lora is None else _lora_settings(lora)

    def model() -> nn.Module:
        with sentences(config), unfaked(), torch.device("meta"), _small():
            settings = _imported("transformers").AutoConfig.for_model(**facts)
            settings.dtype = dtype or settings.dtype or torch.float32
            settings.use_cache = False
            with _default(settings.dtype):
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
    """Read a config of a model that transformers knows."""
    facts = read_config(path)
    if (kind := facts.get("model_type")) not in [*_imported("transformers").CONFIG_MAPPING]:
        raise FormatError(
            f"{path} has the model_type {kind!r:.60}, unknown to transformers: write a factory for --torch"
        )
    return facts


def _head_in(facts: Mapping[str, Any], config: str | os.PathLike[str]) -> str:
    """The first of a config's architectures."""
    match facts.get("architectures"):
        case [str(name), *_]:
            return name
    raise ProgramError(f"{config} names no architecture: name the head, as AutoModelForCausalLM")


def _builder(name: str) -> Callable[[Any], nn.Module]:
    """The function that makes a model of this class of transformers."""
    transformers = _imported("transformers")
    made = getattr(transformers, name, None)
    if isinstance(made, type) and name.startswith("Auto"):
        return made.from_config  # type: ignore[attr-defined,no-any-return]
    if isinstance(made, type) and issubclass(made, transformers.PreTrainedModel):
        return made
    raise ProgramError(
        f"transformers {transformers.__version__} has no model {name!r:.60}: name another head"
    )


@contextmanager
def sentences(config: str | os.PathLike[str]) -> Iterator[None]:
    """Turn what transformers and PyTorch raise for a malformed config into one sentence, without warnings."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except CheckmateError:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {' '.join(str(error).split()):.300}"
        raise FormatError(f"{config} describes no model that runs: {said}") from error


@contextmanager
def _small() -> Iterator[None]:
    """Refuse a model of a million modules, which take minutes and gigabytes even without weights."""
    parts = count()

    def look(*_: object) -> None:
        if next(parts) > _MOST_PARTS:
            raise ProgramError(f"the model has more than {_MOST_PARTS:,} modules")

    handle = register_module_module_registration_hook(look)
    try:
        yield
    finally:
        handle.remove()


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

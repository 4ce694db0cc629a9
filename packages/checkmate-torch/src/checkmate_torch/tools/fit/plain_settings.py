"""A config.json of transformers as plain settings: words and numbers, which name neither code nor a download.

    bytes of a file ↦ {setting: word, number, or list or dict of these}

A config may come from anywhere, and transformers trusts it: some settings make it import code of a
repository, fetch a file, or build a list of a billion items. The settings that are left out here can't change
the memory of a model that transformers builds by its own code.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checkmate.errors import FormatError
from checkmate.plugins import read_file

__all__ = ["plain_settings", "read_config"]

_LARGEST_FILE = 2**23
"""Bytes. With names of 20,000 labels a config has a megabyte."""
_LARGEST_NUMBER = 2**25
"""Of whole numbers: contexts have up to 10 million words, vocabularies of word groups 20 million entries."""
_LARGEST_FLOAT = 1e38
_MOST_LABELS = 2**17
_DEEPEST = 8
"""Levels of lists and objects."""

_NAME = re.compile(r"[A-Za-z0-9]\w{0,99}", re.ASCII)
_WORD = re.compile(r"[\w.*|+-]{1,256}", re.ASCII)
_FLOATS = ("float64", "float32", "float16", "bfloat16")
_CHOICES = {
    "attn_implementation": ("eager", "sdpa", "flex_attention"),
    "experts_implementation": ("eager", "batched_mm", "grouped_mm"),
    "dtype": _FLOATS,
    "torch_dtype": _FLOATS,
}
"""Settings for which transformers takes further words: names of functions, of code on the network."""
_REFUSED = {
    "backbone": "which is looked up on the network: write its config out, as backbone_config",
    "quantization_config": "but quantized weights are not counted: take the config of the model before "
    "quantization",
}
_LEFT_OUT = ("auto_map", "checkpoint_path", "id2label", "label2id")


def read_config(path: Path) -> dict[str, Any]:
    """The plain settings in a config.json, or in the one of a folder.

    Raises:
        FormatError: if it is no regular file of at most 8 MiB, no JSON object, or has a setting that
            :func:`plain_settings` refuses; names the file and the setting.
        OSError: if it can't be read.
    """
    path = path / "config.json" if path.is_dir() else path
    try:
        content = read_file(path, max_size=_LARGEST_FILE)
    except FormatError as error:
        raise FormatError(f"{path} is no config: it is no regular file of at most 8 MiB") from error
    try:
        facts: object = json.loads(content, object_hook=_infinite)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is no JSON: {error}") from error
    if not isinstance(facts, dict):
        raise FormatError(f'{path} is no config of a model: it has no settings, as {{"model_type": …}}')
    try:
        return plain_settings(facts)
    except ValueError as error:
        raise FormatError(f"{path}: {error}") from error


def _infinite(value: dict[str, Any]) -> Any:
    """Infinity, as transformers writes it; other objects unchanged."""
    return math.inf if value == {"__float__": "Infinity"} else value


def plain_settings(facts: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """The settings that are plain values; others are left out.

    The names of labels become their number. A whole number above 2^25 becomes a float, which counts nothing.

    Args:
        facts: a JSON object.
        place: the settings that it is a part of, each with a dot, for messages.

    Raises:
        ValueError: if a number is NaN or too large, values are nested too deeply, or a setting needs code or
            files from elsewhere; names the setting.

    >>> plain_settings({"hidden_size": 64, "auto_map": {"AutoModel": "code.Model"}, "_name_or_path": "a/b"})
    {'hidden_size': 64}
    """
    if isinstance(labels := facts.get("id2label"), dict):
        facts = {**facts, "num_labels": len(labels)}
    plain = {}
    for name, value in facts.items():
        if _NAME.fullmatch(name) and name not in _LEFT_OUT:
            _check(value, name, place)
            plain[name] = _plain(value, f"{place}{name}.")
    return {name: value for name, value in plain.items() if value is not _Not}


class _Not:
    """In the place of a value that is not plain."""


def _check(value: object, name: str, place: str) -> None:
    """Raise ValueError if this setting may not have this value."""
    if value is None:
        return
    if name in _REFUSED:
        raise ValueError(f"{place}{name} is {value!r:.60}, {_REFUSED[name]}")
    if name in _CHOICES and value not in _CHOICES[name]:
        raise ValueError(f"{place}{name} is {value!r:.60}, must be one of {', '.join(_CHOICES[name])}")
    if name == "num_labels" and (type(value) is not int or not 0 < value <= _MOST_LABELS):
        raise ValueError(f"{place}{name} is {value!r:.60}, must be a number from 1 to {_MOST_LABELS}")


def _plain(value: Any, place: str) -> Any:
    """A JSON value, or ``_Not`` if it holds text that is not a word."""
    if place.count(".") > _DEEPEST:
        raise ValueError(f"{place:.40} … is nested too deeply")
    if isinstance(value, str):
        return value if _WORD.fullmatch(value) else _Not
    if isinstance(value, dict):
        return plain_settings(value, place)
    if isinstance(value, list):
        parts = [_plain(part, f"{place}{k}.") for k, part in enumerate(value)]
        return _Not if _Not in parts else parts
    if value != value or (value != math.inf and abs(value or 0) > _LARGEST_FLOAT):
        raise ValueError(f"{place[:-1]} is {value!r:.60}, must be a number up to {_LARGEST_FLOAT:g}")
    return float(value) if isinstance(value, int) and abs(value) > _LARGEST_NUMBER else value

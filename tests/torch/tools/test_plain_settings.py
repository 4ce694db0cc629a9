"""Hostile configs: one sentence and exit code 2; only plain settings of them reach transformers."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from checkmate.cli.app import app
from checkmate.errors import FormatError
from checkmate_torch.tools.fit import hugging_face
from checkmate_torch.tools.fit.plain_settings import plain_settings, read_config

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
KERNEL = "someone/kernel"


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


FILES = {
    "empty": b"",
    "no JSON": b"{",
    "a number": b"5",
    "null": b"null",
    "a list": b"[1]",
    "no UTF-8": b'{"model_type": "\xe9"}',
    "deep lists": b'{"a": ' + b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
    "digits": b'{"vocab_size": ' + b"9" * 5000 + b"}",
    "a name of a megabyte": b'{"' + b"k" * 2**20 + b'": 1}',
}
CHANGES: dict[str, dict[str, Any]] = {
    "kernel": {"attn_implementation": KERNEL},
    "kernels": {"attn_implementation": {"": KERNEL}},
    "kernel of a part": {"text_config": {"attn_implementation": KERNEL}},
    "kernel by a known name": {"attn_implementation": "flash_attention_2"},
    "attention is a number": {"attn_implementation": 3},
    "experts": {"experts_implementation": "sonicmoe"},
    "backbone": {"backbone": "someone/resnet"},
    "quantized": {"quantization_config": {}},
    "quantized part": {"text_config": {"quantization_config": {}}},
    "dtype is a function": {"dtype": "load"},
    "dtype is a module": {"torch_dtype": "os"},
    "dtype of integers": {"dtype": "int8"},
    "dtype of complex numbers": {"dtype": "complex64"},
    "dtype of 8 bits": {"torch_dtype": "float8_e4m3fn"},
    "dtype is a number": {"dtype": 5},
    "dtypes": {"dtype": ["float32"]},
    "many labels": {"num_labels": 10**9},
    "no labels": {"num_labels": -1},
    "labels as text": {"num_labels": "2"},
    "half a label": {"num_labels": 2.5},
    "NaN": {"initializer_range": math.nan},
    "NaN inside": {"rope_scaling": {"type": "linear", "factor": math.nan}},
    "400 digits": {"vocab_size": 10**400},
    "nested": {"x": nested(50)},
    "nested deeply": {"x": nested(900)},
    "type is a list": {"model_type": ["llama"]},
    "type is an object": {"model_type": {}},
    "type is long": {"model_type": "x" * 10_000},
    "type with controls": {"model_type": "\x1b[31m\n"},
    "architectures is text": {"architectures": "LlamaForCausalLM"},
    "architectures is a number": {"architectures": 5},
    "architecture is a number": {"architectures": [5]},
    "architecture is private": {"architectures": ["__doc__"]},
    "architecture of another kind": {"architectures": ["Trainer"]},
    "architecture of another model": {"architectures": ["GPT2LMHeadModel"]},
    "architecture with dots": {"architectures": ["models.llama.LlamaForCausalLM"]},
    "negative": {"vocab_size": -1},
    "zero": {"vocab_size": 0},
    "infinite": {"vocab_size": math.inf},
    "text for a number": {"vocab_size": "128"},
    "fraction": {"vocab_size": 128.5},
    "nothing": {"vocab_size": None},
    "list for a number": {"vocab_size": [128]},
    "truth for a number": {"vocab_size": True},
    "2^62": {"vocab_size": 2**62},
    "2^40": {"hidden_size": 2**40},
    "odd": {"hidden_size": 65},
    "no heads": {"num_attention_heads": 0},
    "three heads": {"num_attention_heads": 3},
    "negative heads": {"num_attention_heads": -4},
    "three key heads": {"num_key_value_heads": 3},
    "unknown function": {"hidden_act": "os.system"},
    "list for a function": {"hidden_act": ["silu"]},
    "rope is text": {"rope_scaling": "yarn"},
    "rope is unknown": {"rope_scaling": {"type": "nothing", "factor": 2}},
    "theta is text": {"rope_theta": "big"},
    "a method": {"to_dict": 5},
    "self": {"self": 1},
    "a property": {"use_return_dict": False},
    "settings of a class": {"base_model_tp_plan": 5},
    "names of attributes": {"attribute_map": 5},
    "unknown layers": {"layer_types": ["evil"]},
    "other layers": {"layer_types": ["full_attention"] * 5},
    "padding outside": {"pad_token_id": 5000},
    "truth is text": {"tie_word_embeddings": "x"},
    "layers of their own": {"per_layer_config": 5},
}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_VERBOSITY"):  # the command sets them
        monkeypatch.setenv(variable, os.environ.get(variable, "1" if "HUB" in variable else "error"))
    return tmp_path / "config.json"


def refusal(config: Path) -> str:
    """What the command says about a config that it refuses."""
    asked = ["fit", "--hf", str(config), "--sequence", "8", "--time-limit", "0.1"]
    done = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert done.exit_code == 2, done.output
    assert not done.stdout
    return done.stderr


@pytest.mark.parametrize("content", FILES.values(), ids=FILES)
def test_a_file_that_is_no_config_is_one_sentence(config: Path, content: bytes) -> None:
    config.write_bytes(content)
    said = refusal(config)
    assert said.count("\n") == 1
    assert "config.json" in said


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_a_config_that_transformers_can_not_use_is_one_sentence(
    config: Path, changes: dict[str, Any]
) -> None:
    config.write_text(json.dumps(LLAMA | changes))
    said = refusal(config)
    assert said.startswith("Error: ")
    assert said.count("\n") == 1
    assert len(said) < 1100


def test_only_regular_files_up_to_a_limit_are_read(config: Path) -> None:
    assert "does not exist" in refusal(config)
    os.mkfifo(config)
    assert "no regular file" in refusal(config)
    config.unlink()
    with config.open("wb") as file:
        file.truncate(2**40)  # sparse
    assert "at most 8 MiB" in refusal(config)
    with pytest.raises(FormatError, match="no regular file"):
        read_config(Path("/dev/zero"))


@pytest.mark.parametrize(
    "setting",
    [
        {"auto_map": {"AutoModelForCausalLM": "code.Model"}},
        {"_attn_implementation": KERNEL},
        {"_attn_implementation_internal": KERNEL},
        {"name_or_path": "../../etc/passwd"},
        {"checkpoint_path": "weights.pth"},
        {"__class__": "x"},
        {"__dict__": {}},
        {"": 1},
        {"a b": 1},
        {"label2id": {"a": 0}},
        {"tokenizer": KERNEL},
        {"tokenizers": ["plain", KERNEL]},
        {"url": "https://example.org"},
    ],
    ids=str,
)
def test_names_of_code_and_files_are_left_out(setting: dict[str, Any]) -> None:
    assert plain_settings(LLAMA | setting) == LLAMA
    assert plain_settings({"text_config": LLAMA | setting}) == {"text_config": LLAMA}


def test_labels_become_their_number_and_large_numbers_floats() -> None:
    assert plain_settings({"id2label": {"0": "a dog", "1": "a cat"}}) == {"num_labels": 2}
    theta = plain_settings({"rope_theta": 10**9})["rope_theta"]
    assert (type(theta), theta) == (float, 1e9)


def test_infinity_is_a_number_in_both_spellings(config: Path) -> None:
    for spelled in ("Infinity", '{"__float__": "Infinity"}'):
        config.write_text(f'{{"time_step_limit": [0.0, {spelled}]}}')
        assert read_config(config) == {"time_step_limit": [0.0, math.inf]}


@pytest.mark.parametrize("kind", ["bert", "deepseek_v3", "gpt2", "llama", "mamba2", "t5", "vit"])
def test_a_config_that_transformers_writes_is_read_as_it_is(config: Path, kind: str) -> None:
    from transformers import AutoConfig

    written = AutoConfig.for_model(kind)
    written.to_json_file(config, use_diff=False)
    assert AutoConfig.for_model(**read_config(config)).to_dict() == written.to_dict()


def test_a_model_of_a_million_modules_is_not_built(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hugging_face, "_MOST_PARTS", 100)
    config.write_text(json.dumps(LLAMA | {"num_hidden_layers": 50}))
    assert "more than 100 modules" in refusal(config)

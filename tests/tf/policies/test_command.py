"""The command ``checkmate export --as keras-remat``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf
from click.testing import CliRunner, Result
from keras import layers

from checkmate.cli.app import app


def factory() -> tuple[Any, ...]:
    """A factory for ``checkmate export --tf``."""
    stack = [layers.Dense(128, "gelu") for _ in range(3)]
    model = keras.Sequential([keras.Input([32]), *stack, layers.Dense(1)])
    return model, "mse", "sgd", tf.TensorSpec([1024, 32]), tf.TensorSpec([1024, 1])


def wrong() -> int:
    return 1


def run(program: str, *words: str) -> Result:
    words = ("export", "--tf", f"{__name__}:{program}", "--cost-model", "flops", "--time-limit", "0", *words)
    return CliRunner().invoke(app, words)


def test_code_is_written_and_the_prediction_is_told(tmp_path: Path) -> None:
    file = tmp_path / "policy.py"
    result = run("factory", "--budget", "80%", "--as", "keras-remat", "--output", str(file))
    assert result.exit_code == 0, result.output
    assert "remat of activations: " in result.stderr
    assert result.stdout == ""
    compile(file.read_text(), str(file), "exec")
    assert "def apply(model)" in file.read_text()


def test_json_has_the_text() -> None:
    facts = json.loads(run("factory", "--budget", "60%", "--json").stdout)
    assert facts["peak"] <= facts["budget"] < facts["plain_peak"]
    assert f"{facts['layers'][0]!r}" in facts["text"]


@pytest.mark.parametrize(
    ("program", "budget", "message"),
    [
        ("factory", "1%", "the least peak is"),
        ("wrong", "50%", "must return"),
        ("nothing", "50%", "write MODULE"),
    ],
)
def test_what_cannot_be_exported_is_one_sentence(program: str, budget: str, message: str) -> None:
    result = run(program, "--budget", budget)
    assert result.exit_code == 2
    assert message in result.stderr

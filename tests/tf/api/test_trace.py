"""Planning without training gives the graph and the plan of training, and changes no variable."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from click.testing import CliRunner
from keras import layers

import checkmate
import checkmate.tf2
from checkmate.cli.app import app
from checkmate.testing import FrontendConformance
from checkmate_tf.adapters.frontend import Frontend, ProgramError

CHEAP: dict[str, Any] = {"cost_model": "flops", "workspaces": False, "cache": False}
PLAIN_RULE: dict[str, Any] = {**CHEAP, "solver": "evict-belady"}
"""A solver that finds the same schedule at every call, however busy the machine is."""
SPECS = (tf.TensorSpec([64, 32]), tf.TensorSpec([64, 1]))


def perceptron() -> keras.Model:
    keras.utils.set_random_seed(0)
    stack = [layers.Dense(64, "gelu", name=f"dense_{k}") for k in range(4)]
    return keras.Sequential([keras.Input([32]), *stack, layers.Dense(1, name="last")], name="perceptron")


def factory() -> tuple[Any, ...]:
    """A factory for ``checkmate trace --tf``."""
    return perceptron(), "mse", keras.optimizers.SGD(0.1, name="sgd"), *SPECS


def of_function() -> tuple[Any, ...]:
    """A factory of a function and its arguments."""
    w = tf.Variable(tf.zeros([32, 32]), name="w")

    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.gelu(x @ w) @ w)
        return loss, tape.gradient(loss, w)

    return step, (SPECS[0],)


class TestFrontend(FrontendConformance):
    def frontend(self) -> Any:
        return _Cheap()

    def programs(self) -> Iterable[tuple[Any, ...]]:
        return [(factory,), (of_function,)]


class _Cheap(Frontend):
    """Counts FLOPs instead of timing ops."""

    def trace(self, program: Any, /, **options: Any) -> Any:
        keras.utils.clear_session()
        return super().trace(program, **{**CHEAP, **options})


def test_the_plan_is_that_of_training_and_no_variable_is_changed() -> None:
    model, loss, optimizer, *specs = factory()
    optimizer.build(model.trainable_variables)
    before = [v.numpy() for v in (*model.variables, *optimizer.variables)]
    traced = checkmate.tf2.trace(model, loss, optimizer, *specs, **CHEAP)
    plan = checkmate.tf2.plan(model, loss, optimizer, *specs, "90%", **PLAIN_RULE)
    compiled = checkmate.tf2.compile(model, loss, optimizer, *specs, "90%", **PLAIN_RULE)
    assert traced.graph.n_ops == plan.graph.n_ops == compiled.plans[0].graph.n_ops
    assert traced.graph.base_size <= plan.graph.base_size  # which may include bytes for small tensors
    assert plan.solution.peak == compiled.plans[0].solution.peak
    assert str(plan.report()) == str(compiled.report())
    after = [v.numpy() for v in (*model.variables, *optimizer.variables)]
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_plan_can_be_shown_and_saved(tmp_path: Path) -> None:
    plan = checkmate.tf2.plan(*factory(), "95%", **PLAIN_RULE)
    assert plan.explain().rows is not None
    plan.save_report(tmp_path / "step.html")
    assert "</html>" in (tmp_path / "step.html").read_text()
    traced = checkmate.tf2.trace(*factory(), **CHEAP)
    traced.save(tmp_path / "step.json")
    assert checkmate.read_graph(tmp_path / "step.json") == traced.graph
    assert "TracedFunction of <DFGraph" in repr(traced)


def test_the_command_line_traces_the_step_of_a_factory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mine", sys.modules[__name__])
    for name in ("factory", "of_function"):
        output = tmp_path / f"{name}.json"
        args = ["trace", "--tf", f"mine:{name}", "--cost-model", "flops", "-o", str(output), "--json"]
        result = CliRunner().invoke(app, args, prog_name="checkmate")
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["output"] == str(output)
        assert checkmate.read_graph(output).cost_unit == "flop"


def test_the_command_line_runs_only_the_named_module_of_the_current_folder(
    tmp_path: Path,
) -> None:
    for name in ("json", "random", "logging", "numpy", "tensorflow", "keras", "six", "absl", "checkmate_tf"):
        (tmp_path / f"{name}.py").write_text("open('ran', 'a').write(__name__)")
    (tmp_path / "mine.py").write_text(
        "import json, random, tensorflow as tf\n"
        "def factory(): return tf.math.square, (tf.TensorSpec([4096]),)\n"
    )
    command = [
        Path(sys.executable).with_name("checkmate"),
        "trace",
        "--tf",
        "mine:factory",
        "-o",
        "step.json",
    ]
    done = subprocess.run([*command, "--cost-model", "flops"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert checkmate.read_graph(tmp_path / "step.json").n_ops == 1
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("shape", [(64, 32), [None, 32]])
def test_a_shape_without_a_dtype_is_refused(shape: Any) -> None:
    with pytest.raises(TypeError, match=r"input_spec is .* write tf.TensorSpec\("):
        checkmate.tf2.plan(perceptron(), "mse", "sgd", shape, SPECS[1], "100%", **CHEAP)


@pytest.mark.parametrize("made", [3, (1, 2), (perceptron, 3), lambda: (1, 2, 3, 4, 5)])
def test_other_objects_than_programs_are_refused(made: Any) -> None:
    with pytest.raises(ProgramError, match=r"\(model, loss, optimizer, input_spec, label_spec\) or"):
        Frontend().trace(made)

"""An enabled model trains with the bits of Keras' own training, within the budget, in every use of fit."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import checkmate.tf2
from checkmate import BudgetError, InfeasibleBudgetError
from checkmate.report import Kind
from checkmate_tf import PlannedTraining, UnsupportedModelError

State = tuple[dict[str, list[float]], list[np.ndarray[Any, Any]]]
Model = Any  # Keras has no types

X = np.random.default_rng(0).normal(size=(80, 64)).astype("float32")
Y = np.random.default_rng(1).integers(0, 4, size=80)
MANY = (np.tile(X, (8, 1)), np.tile(Y, 8))


def network(**compiled: Any) -> Model:
    """A perceptron with batch norm and dropout, compiled; always the same one."""
    keras.utils.set_random_seed(0)
    stack: list[layers.Layer] = [keras.Input((64,))]
    for _ in range(3):
        stack += [layers.Dense(64), layers.BatchNormalization(), layers.ReLU(), layers.Dropout(0.2)]
    model = keras.Sequential([*stack, layers.Dense(64, dtype="float32")])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, **({"metrics": ["accuracy"]} | compiled))
    return model


def small(**compiled: Any) -> Model:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((64,)), layers.Dense(4)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(**({"optimizer": "sgd", "loss": loss} | compiled))
    return model


def enable(model: Model, budget: str = "100%") -> PlannedTraining:
    """Enable with FLOPs as costs and without workspaces, which takes no measuring."""
    return checkmate.tf2.enable(model, budget=budget, cost_model="flops", workspaces=False, time_limit=2)


def after(model: Model, *data: Any, **how: Any) -> State:
    """The history of a training, and the weights, seeds, averages and optimizer state after it."""
    history = model.fit(*data, **({"epochs": 2, "verbose": 0, "shuffle": False} | how)).history
    return history, [v.numpy() for v in (*model.variables, *model.optimizer.variables)]


def same(a: State, b: State) -> bool:
    return a[0] == b[0] and all(np.array_equal(x, y) for x, y in zip(a[1], b[1], strict=True))


@pytest.mark.parametrize("budget", ["100%", "70%"])
def test_every_budget_gives_the_bits_of_keras_own_training(budget: str) -> None:
    """On one thread. The last batch is half as large: it needs neither a search nor recomputation."""
    how = {"batch_size": 256, "validation_data": (X, Y), "shuffle": True}
    expected = after(network(), *MANY, **how)
    model = network()
    training = enable(model, budget)
    assert same(after(model, *MANY, **how), expected)
    first, last = (plan.solution for plan in training.plans)
    assert (first.overhead > 0) == (budget == "70%")
    assert (last.solver, last.overhead) == ("PlainOrder", 0)
    assert "recomputed" in str(training.explain(plan=0)) or budget == "100%"


def test_the_measured_peak_of_a_step_is_within_the_budget() -> None:
    model = network()
    x, y = map(tf.constant, MANY)
    training = checkmate.tf2.enable(model, budget="70%", time_limit=2)
    model.train_on_batch(x, y)
    with checkmate.tf2.memory_meter(model, model.optimizer, x, y) as meter:
        model.train_on_batch(x, y)
    (plan,) = training.plans
    assert 0.85 * plan.expected < meter.peak <= plan.solution.problem.budget
    found = {kind: size for kind, size in training.report(meter).by_kind.items() if size}
    assert Kind.GRADIENTS in plan.account.kinds
    assert found[Kind.PARAMETERS] < found[Kind.OPTIMIZER]
    assert found[Kind.BATCH] == sum(part.nbytes for part in MANY)


HABITS: dict[str, tuple[dict[str, Any], Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]]] = {
    "steps per execution": ({"steps_per_execution": 2}, lambda: ((X, Y), {"batch_size": 20})),
    "sample weights": (
        {"weighted_metrics": ["accuracy"]},
        lambda: ((X, Y), {"sample_weight": np.linspace(0, 1, 80)}),
    ),
    "class weights": ({}, lambda: ((X, Y), {"class_weight": {0: 1.0, 1: 2.0, 2: 0.5, 3: 1.0}})),
    "a schedule of rates": (
        {},
        lambda: ((X, Y), {"callbacks": [keras.callbacks.LearningRateScheduler(lambda e: 0.1**e)]}),
    ),
    "a data set without end": (
        {},
        lambda: ((tf.data.Dataset.from_tensor_slices((X, Y)).repeat().batch(32),), {"steps_per_epoch": 3}),
    ),
    "a generator": ({}, lambda: ((_batches(),), {"steps_per_epoch": 2})),
}


def _batches() -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    while True:
        yield X[:32], Y[:32]
        yield X[32:64], Y[32:64]


@pytest.mark.parametrize("habit", HABITS)
def test_the_habits_of_fit_keep_working(habit: str) -> None:
    compiled, given = HABITS[habit]
    results = []
    for enabled in (False, True):
        model = small(**compiled)
        training = enable(model) if enabled else None
        data, how = given()
        results.append(after(model, *data, **how))
        assert training is None or training.plans
    assert same(*results)


def test_callbacks_see_each_execution_and_stop_training() -> None:
    seen: dict[Model, list[tuple[int, list[str]]]] = {}

    class Watch(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
            seen.setdefault(self.model, []).append((batch, sorted(logs or {})))
            self.model.stop_training = True

    plain, model = (small(steps_per_execution=2, metrics=["accuracy"]) for _ in range(2))
    enable(model)
    for one in (plain, model):
        after(one, X, Y, callbacks=[Watch()], epochs=1)
    assert seen[model] == seen[plain]
    assert [sorted(logs) for _, logs in seen[model]] == [["accuracy", "loss"]]


def test_single_batches_train_as_without_a_plan() -> None:
    plain, model = small(), small()
    enable(model)
    for _ in range(2):
        assert model.train_on_batch(X, Y, return_dict=True) == plain.train_on_batch(X, Y, return_dict=True)
    assert np.array_equal(model.weights[0].numpy(), plain.weights[0].numpy())
    assert model.evaluate(X, Y, verbose=0) == plain.evaluate(X, Y, verbose=0)
    assert np.array_equal(model.predict(X, verbose=0), plain.predict(X, verbose=0))


class Own(keras.Model):  # type: ignore[misc]
    """A model that is built in its first step, with a training step of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(4)
        self.traced = 0

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.dense(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        self.traced += 1
        return {**super().train_step(data), "norm": keras.ops.norm(self.dense.kernel)}


def test_a_custom_training_step_is_planned_and_may_create_the_variables() -> None:
    results = []
    for enabled in (False, True):
        keras.utils.set_random_seed(0)
        model = Own()
        model.compile("adam", "mae")
        training = enable(model) if enabled else None
        results.append(after(model, X, X[:, :4], batch_size=40))
        assert training is None or len(training.plans) == 1
        assert model.traced == 2  # tf.function traces again when variables were made
    assert same(*results)
    assert "norm" in results[0][0]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("metrics", [[], ["accuracy"]])
def test_a_built_model_is_traced_once(
    optimizer: str, metrics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tf.Tensor] = []
    model = small(optimizer=optimizer, metrics=metrics)
    call = type(model).call
    monkeypatch.setattr(type(model), "call", lambda self, *a, **k: calls.append(a[0]) or call(self, *a, **k))
    enable(model)
    after(model, X, Y, batch_size=40)
    makes_metrics = bool(metrics) and keras.__version__.startswith("3.3.")  # in the step, for the first batch
    assert len(calls) == 1 + makes_metrics


def test_a_loss_scale_that_changes_is_followed_from_the_first_step_on() -> None:
    keras.config.set_dtype_policy("mixed_float16")
    scales = []
    for enabled in (False, True):
        model = network()
        scaling = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(), initial_scale=2.0**30)
        model.compile(scaling, model.loss)
        if enabled:
            enable(model)
        after(model, X, Y, batch_size=40, epochs=12)
        scales.append(float(scaling.dynamic_scale.numpy()))
    assert scales[0] == scales[1] > 2.0 ** (30 - 24)  # halved until the gradients were finite


def test_slots_and_metrics_that_a_step_makes_have_the_names_of_keras_own() -> None:
    names = []
    for enabled in (False, True):
        model = small(metrics=["accuracy"])
        if enabled:
            enable(model)
        after(model, X, Y, epochs=1)
        variables = [*model.optimizer.variables, *model.metrics_variables]
        names.append([(v.name, v.path.split("/", 1)[-1], v.shape) for v in variables])
    assert names[0] == names[1]


def test_mixed_precision_gives_the_same_bits_at_every_budget() -> None:
    """In bfloat16; float16, with the branches of its loss scale, is in ``test_branches.py``."""
    keras.config.set_dtype_policy("mixed_bfloat16")
    results = []
    for budget in ("100%", "70%"):
        model = network()
        enable(model, budget)
        results.append(after(model, *MANY, batch_size=256, epochs=1))
    assert same(*results)


def test_a_model_that_runs_eagerly_is_not_planned_and_a_warning_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = small(run_eagerly=True)
    training = enable(model)
    with caplog.at_level(logging.WARNING, "checkmate_tf"):
        eager = after(model, X, Y)
    assert "runs eagerly" in caplog.text
    assert training.plans == ()
    with pytest.raises(UnsupportedModelError, match=r"run_eagerly = False"):
        training.plan(X[:32], Y[:32])
    planned = small()
    enable(planned)
    np.testing.assert_allclose(after(planned, X, Y)[1][0], eager[1][0], rtol=1e-5)


def test_missing_sample_weights_are_no_other_kind_of_batch() -> None:
    model = small()
    training = enable(model)
    training.plan(X, Y)
    model.train_on_batch(X, Y)
    model.fit(X, Y, batch_size=80, verbose=0)
    assert len(training.plans) == 1


SIZES = (640, 480, 320, 200, 680)
"""Batches in turn."""


def in_turn(model: Model) -> State:
    losses = {"loss": [float(model.train_on_batch(MANY[0][:n], MANY[1][:n])[0]) for n in SIZES]}
    return losses, [v.numpy() for v in (*model.variables, *model.optimizer.variables)]


def test_many_sizes_share_plans_that_give_the_same_bits_at_every_budget_and_stay_within_it() -> None:
    """The third size brings a plan for all up to the largest, and one for half; a larger size one more."""
    stock, whole, model = network(), network(), network()
    enable(whole)
    training = enable(model, "75%")
    found = in_turn(model)
    assert same(found, in_turn(whole))
    np.testing.assert_allclose(found[0]["loss"], in_turn(stock)[0]["loss"], rtol=1e-5)
    made = training.plans
    for n in (*SIZES, 100, 321, 555, 679):
        training.plan(MANY[0][:n], MANY[1][:n])
    assert training.plans == made
    budget = max(plan.solution.problem.budget for plan in training.plans)
    for n in SIZES:
        x, y = (tf.constant(part[:n]) for part in MANY)
        with checkmate.tf2.memory_meter(model, model.optimizer, x, y) as meter:
            model.train_on_batch(x, y)
        assert meter.peak <= budget


def test_a_step_that_must_know_its_sizes_has_a_plan_for_each() -> None:
    class Counting(keras.Model):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            x, *_ = keras.utils.unpack_x_y_sample_weight(data)
            return {"loss": tf.reduce_sum(self(x) ** 2), "seen": tf.constant(x.shape[0] + 0)}

    inputs = keras.Input((64,))
    model = Counting(inputs, layers.Dense(4)(inputs))
    model.compile("sgd")
    training = enable(model)
    seen = [int(model.train_on_batch(X[:n], return_dict=True)["seen"]) for n in (80, 40, 20, 30, 80)]
    assert seen == [80, 40, 20, 30, 80]
    assert len(training.plans) == 4


@pytest.fixture
def functions_run_eagerly() -> Iterator[None]:
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.mark.usefixtures("functions_run_eagerly")
@pytest.mark.filterwarnings("ignore:Even though:UserWarning")  # of tf.data
def test_functions_that_run_eagerly_run_python_code_and_a_warning_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Peeking(keras.Model):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            seen.append(data[0].numpy().shape)
            return super().train_step(data)

    seen: list[tuple[int, ...]] = []
    inputs = keras.Input((64,))
    model = Peeking(inputs, layers.Dense(4)(inputs))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    training = enable(model)
    with caplog.at_level(logging.WARNING, "checkmate_tf"):
        after(model, X, Y)
    assert seen == [(32, 64), (32, 64), (16, 64)] * 2
    assert caplog.text.count("runs eagerly") == 1
    assert training.plans == ()


def test_a_saved_model_does_not_depend_on_being_enabled(tmp_path: Path) -> None:
    model = small(metrics=["accuracy"])
    config, compiled = model.get_config(), model.get_compile_config()
    training = enable(model)
    model.fit(X, Y, batch_size=40, verbose=0)
    assert (model.get_config(), model.get_compile_config()) == (config, compiled)
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert checkmate.tf2.planned_training(loaded) is None
    enable(loaded)
    model.load_weights(tmp_path / "model.weights.h5")
    assert same(after(loaded, X, Y, batch_size=40), after(model, X, Y, batch_size=40))
    assert len(training.plans) == 1


def test_disable_restores_keras_own_training() -> None:
    model = small()
    names = set(vars(model))
    training = enable(model)
    assert checkmate.tf2.planned_training(model) is training
    after(model, X, Y)
    checkmate.tf2.disable(model)
    assert "make_train_function" not in set(vars(model)) - names
    assert training.plans == ()
    after(model, X, Y)
    checkmate.tf2.disable(model)  # again, to no effect
    assert checkmate.tf2.planned_training(model) is None


def test_a_callback_may_enable_and_disable() -> None:
    class Switch(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
            checkmate.tf2.disable(self.model) if epoch == 2 else enable(self.model)

    plain, model = small(), small()
    assert same(after(model, X, Y, epochs=3, callbacks=[Switch()]), after(plain, X, Y, epochs=3))


def test_compiling_again_keeps_the_budget_and_makes_new_plans() -> None:
    plain, model = small(), small()
    training = enable(model)
    for m in (plain, model):
        m.fit(X, Y, batch_size=40, verbose=0)
        m.compile("adam", "mae")
    assert training.plans == ()
    assert same(after(model, X, X[:, :4], batch_size=40), after(plain, X, X[:, :4], batch_size=40))
    assert len(training.plans) == 1
    again = enable(model, "90%")
    assert checkmate.tf2.planned_training(model) is again
    assert training.plans == ()


def test_training_uses_a_plan_made_before() -> None:
    model = small()
    training = enable(model)
    plan = training.plan(tf.TensorSpec([40, 64]), tf.TensorSpec([40], tf.int64))
    after(model, X, Y, batch_size=40)
    assert training.plans == (plan,)


def test_an_enabled_model_is_freed_with_its_last_reference() -> None:
    model = small()
    enable(model)
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None


def test_an_unplannable_model_is_refused_with_the_way_out() -> None:
    with pytest.raises(UnsupportedModelError, match=r"not compiled.*call model\.compile"):
        enable(keras.Sequential([layers.Dense(1)]))
    with pytest.raises(UnsupportedModelError, match="leave out jit_compile=True"):
        enable(small(jit_compile=True))
    with pytest.raises(BudgetError):
        enable(small(), "much")
    model = small()
    enable(model)
    model.compile("sgd", "mse", jit_compile=True)
    with pytest.raises(UnsupportedModelError, match="leave out jit_compile=True"):
        model.fit(X, X[:, :4], verbose=0)


def test_a_strategy_is_refused_with_the_way_out() -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        model = small()
        with pytest.raises(UnsupportedModelError, match="plan is for one device"):
            enable(model)
    with pytest.raises(UnsupportedModelError, match=r"trains under MirroredStrategy.*strategy\.scope"):
        enable(model)


def test_an_infeasible_budget_raises_and_changes_no_weight() -> None:
    model = network()
    before = [w.numpy() for w in model.weights]
    enable(model, "10 KB")
    with pytest.raises(InfeasibleBudgetError, match="the least budget known to work is"):
        model.fit(X, Y, verbose=0)
    assert all(np.array_equal(a, b.numpy()) for a, b in zip(before, model.weights, strict=True))


def test_a_budget_is_a_callback() -> None:
    """It trains with the bits of Keras' own training, keeps its plans for the next fit, and can be ended."""
    expected = after(network(), *MANY, batch_size=256)
    model, budget = network(), checkmate.tf2.Budget("70%", cost_model="flops", workspaces=False, time_limit=2)
    assert same(after(model, *MANY, batch_size=256, callbacks=[budget]), expected)
    assert budget.training is not None
    plans = budget.training.plans
    model.fit(*MANY, batch_size=256, verbose=0, callbacks=[budget])
    assert budget.training.plans == plans
    assert len(plans) == 2
    checkmate.tf2.disable(model)
    assert checkmate.tf2.planned_training(model) is None


def test_a_callback_reads_its_budget_at_once() -> None:
    with pytest.raises(BudgetError, match="60 percent"):
        checkmate.tf2.Budget("60 percent")


def test_a_share_keeps_its_bytes_when_layers_are_frozen_and_the_model_is_compiled_again() -> None:
    model = network()
    training = enable(model, "80%")

    def budget() -> int:
        model.compile("adam", model.loss)
        return training.plan(*MANY).solution.problem.budget

    whole = budget()
    for layer in model.layers[:8]:
        layer.trainable = False
    assert budget() == whole

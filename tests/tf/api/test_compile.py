"""A compiled iteration trains like Keras' own training step, and mistakes are reported at once."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import checkmate.tf2
from checkmate import InfeasibleBudgetError
from checkmate_tf.releases import UnsupportedKerasError

CHEAP: dict[str, Any] = {"cost_model": "flops", "workspaces": False, "time_limit": 2, "cache": False}
IMAGES, LABELS = (
    tf.random.stateless_normal([16, 12, 12, 3], [1, 2]),
    tf.random.stateless_uniform([16], [1, 2], 0, 10, tf.int32),
)
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def convnet() -> keras.Model:
    """Batch norm, dropout, and a regulariser."""
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((12, 12, 3)),
            layers.Conv2D(16, 3, padding="same", kernel_regularizer="l2"),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Conv2D(16, 3, padding="same"),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Dropout(0.3),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10),
        ]
    )


def same(a: keras.Model, b: keras.Model) -> bool:
    """Whether all variables are equal, except for the last bits, which depend on Grappler's fusions."""
    pairs = zip(a.variables, b.variables, strict=True)
    return all(np.allclose(v.numpy(), w.numpy(), rtol=1e-5, atol=1e-6) for v, w in pairs)


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adam by name": lambda: "adam",
    "clipping by global norm, momentum, a schedule": lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.CosineDecay(0.1, 10), momentum=0.9, global_clipnorm=0.1
    ),
    "accumulation": lambda: keras.optimizers.AdamW(gradient_accumulation_steps=2),
    "moving averages": lambda: keras.optimizers.Adam(use_ema=True, ema_overwrite_frequency=2),
    "loss scaling": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_trains_as_keras_does(name: str) -> None:
    model, reference = convnet(), convnet()
    step = checkmate.tf2.compile(model, LOSS, OPTIMIZERS[name](), IMAGES, LABELS, "90%", **CHEAP)
    assert len(step.plans) == 1
    reference.compile(OPTIMIZERS[name](), LOSS, jit_compile=False)
    for _ in range(3):
        prediction, loss = step(IMAGES, LABELS)
        reference.reset_metrics()  # the loss of Keras 3.3 is the mean since then
        assert float(loss) == pytest.approx(float(reference.train_on_batch(IMAGES, LABELS)), rel=1e-5)
    assert prediction.shape == (16, 10)
    assert same(model, reference)


def two_sided() -> keras.Model:
    """Two inputs, two outputs, and an embedding."""
    keras.utils.set_random_seed(0)
    ids, x = keras.Input([6], dtype="int32", name="ids"), keras.Input([8], name="x")
    y = layers.Concatenate()([layers.Flatten()(layers.Embedding(400, 16)(ids)), x])
    y = layers.Dense(64, "relu")(y)
    return keras.Model({"ids": ids, "x": x}, [layers.Dense(3, name="a")(y), layers.Dense(1, name="b")(y)])


def test_several_inputs_and_outputs() -> None:
    inputs = {"ids": np.arange(192, dtype=np.int32).reshape(32, 6), "x": np.ones([32, 8], np.float32)}
    labels = [np.arange(32) % 3, np.ones([32, 1], np.float32)]
    loss = {"a": LOSS, "b": "mean_squared_error"}
    model, reference = two_sided(), two_sided()
    step = checkmate.tf2.compile(model, loss, "adam", inputs, labels, "100%", **CHEAP)
    reference.compile("adam", loss, jit_compile=False)
    for _ in range(3):
        predictions, value = step(inputs, labels)
        expected = reference.train_on_batch(inputs, labels, return_dict=True)["loss"]
        assert [p.shape for p in predictions] == [(32, 3), (32, 1)]
    assert float(value) <= float(expected) * 1.001  # Keras returns the mean over its steps
    assert same(model, reference)


class Lazy(keras.Model):
    """Has its variables only after the first call; one of them is never used."""

    def __init__(self) -> None:
        super().__init__()
        keras.utils.set_random_seed(0)
        self.body, self.head = layers.Dense(32, "relu"), layers.Dense(1)
        self.unused = self.add_weight(shape=[4], name="unused")

    def call(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": self.head(self.body(x))}


def test_a_subclassed_model_is_built_for_its_spec_and_an_unused_variable_keeps_its_value() -> None:
    model = Lazy()
    before = model.unused.numpy()
    specs = (tf.TensorSpec([64, 8]), tf.TensorSpec([64, 1]))

    def loss(label: tf.Tensor, prediction: dict[str, tf.Tensor]) -> tf.Tensor:
        return (label - prediction["y"]) ** 2  # a vector: the mean is taken

    with pytest.warns(UserWarning, match="Gradients do not exist for variables"):
        step = checkmate.tf2.compile(model, loss, keras.optimizers.SGD(0.01), *specs, "100%", **CHEAP)
    x, y = tf.ones([64, 8]), tf.ones([64, 1])
    losses = [float(step(x, y)[1]) for _ in range(3)]
    assert losses[0] > losses[1] > losses[2]
    assert float(tf.reduce_mean((y - model(x)["y"]) ** 2)) < losses[2]
    assert np.array_equal(model.unused.numpy(), before)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(policy: str) -> None:
    keras.config.set_dtype_policy(policy)
    model, reference = convnet(), convnet()
    step = checkmate.tf2.compile(model, LOSS, keras.optimizers.SGD(), IMAGES, LABELS, "95%", **CHEAP)
    scaled = isinstance(step.optimizer, keras.optimizers.LossScaleOptimizer)
    assert scaled == (policy == "mixed_float16")
    reference.compile(keras.optimizers.SGD(), LOSS, jit_compile=False)
    expected = reference.train_on_batch(IMAGES, LABELS)
    prediction, loss = step(IMAGES, LABELS)
    assert prediction.dtype.name == policy.removeprefix("mixed_")
    assert float(loss) == pytest.approx(float(expected), rel=0.02)


def test_without_specs_the_first_call_plans_and_another_size_plans_again() -> None:
    step = checkmate.tf2.compile(convnet(), LOSS, "sgd", budget="100%", **CHEAP)
    assert step.plans == ()
    step(IMAGES, LABELS)
    step(IMAGES[:5], LABELS[:5])
    assert len(step.plans) == 2
    assert "parameters" in str(step.report())


def test_reports_separate_the_optimizer_from_the_model() -> None:
    step = checkmate.tf2.compile(convnet(), LOSS, "adam", IMAGES, LABELS, "100%", **CHEAP)
    kinds = step.report().by_kind
    found = {str(kind.value): size for kind, size in kinds.items()}
    assert found["optimizer state"] >= 2 * found["parameters"]


def test_the_error_for_a_small_budget_names_one_that_works() -> None:
    model = convnet()
    with pytest.raises(InfeasibleBudgetError) as caught:
        checkmate.tf2.compile(model, LOSS, "sgd", IMAGES, LABELS, "100 kB", **CHEAP)
    least = caught.value.minimum
    assert least is not None
    checkmate.tf2.compile(model, LOSS, "sgd", IMAGES, LABELS, least, **CHEAP)(IMAGES, LABELS)


SPECS: list[tuple[Any, str]] = [
    (tf.TensorSpec([None, 12, 12, 3]), r"input_spec has the shape \(None, 12, 12, 3\).*"
     r"tf.TensorSpec\(\[32, 12, 12, 3\], tf.float32\).*drop_remainder=True"),
    ([tf.TensorSpec([8, None], tf.int32)], r"input_spec\[0\] .*tf.TensorSpec\(\[8, ...\], tf.int32\)"),
    ({"x": tf.TensorSpec(None)}, r"input_spec\['x'\] has the shape <unknown>"),
    (tf.ragged.constant([[1.0], [2.0, 3.0]]), r"RaggedTensor.*x.to_tensor\(shape="),
    (tf.SparseTensorSpec([8, 4]), r"SparseTensorSpec.*tf.sparse.to_dense"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "message"), SPECS)
def test_a_spec_of_unknown_bytes_is_refused_with_the_one_to_write(spec: Any, message: str) -> None:
    with pytest.raises(checkmate.tf2.UnsupportedFunctionError, match=message):
        checkmate.tf2.compile(convnet(), LOSS, "sgd", spec, LABELS, "100%", **CHEAP)


def test_other_objects_than_specs_are_refused() -> None:
    with pytest.raises(TypeError, match=r"label_spec\['y'\] is 'cat', must be a tensor"):
        checkmate.tf2.compile(convnet(), LOSS, "sgd", IMAGES, {"y": "cat"}, "100%", **CHEAP)


def test_a_model_that_is_not_built_needs_a_spec() -> None:
    with pytest.raises(checkmate.tf2.UnsupportedModelError, match=r"'lazy.*is not built.*input_spec="):
        checkmate.tf2.compile(Lazy(), "mse", "sgd")


@pytest.mark.parametrize(
    ("wrong", "way_out"),
    [
        (
            lambda: checkmate.tf2.compile(convnet, LOSS, "sgd"),
            r"model is <function.*checkmate\.tf2\.function\(",
        ),
        (lambda: checkmate.tf2.enable(convnet), r"model is <function.*checkmate\.tf2\.function\("),
        (lambda: checkmate.tf2.trace(convnet, LOSS, "sgd", IMAGES, IMAGES), r"checkmate\.tf2\.function\("),
        (
            lambda: checkmate.tf2.compile(convnet(), LOSS, keras.optimizers.SGD),
            r"keras\.optimizers\.Adam\(\)",
        ),
        (lambda: checkmate.tf2.compile(convnet(), LOSS, 3), r"or its name, as 'adam'"),
        (lambda: checkmate.tf2.compile(convnet(), keras.losses.MeanSquaredError, "sgd"), r"loss='mse'"),
        (lambda: checkmate.tf2.compile(convnet(), 3, "sgd"), r"loss holds 3: must be"),
        (lambda: checkmate.tf2.function("60%"), r"fn is '60%'.*function\(step, budget='8GiB'\)"),
        (lambda: checkmate.tf2.function(keras.Model), r"function\(step, budget='8GiB'\)"),
        (lambda: checkmate.tf2.compile(convnet, 3, 3, tim_limit=1), r"did you mean 'time_limit'"),
    ],
)
def test_an_argument_of_a_wrong_type_is_refused_with_the_way_out(
    wrong: Callable[[], object], way_out: str
) -> None:
    with pytest.raises(TypeError, match=way_out):
        wrong()


def test_a_model_without_trainable_variables_is_refused() -> None:
    model = convnet()
    model.trainable = False
    with pytest.raises(checkmate.tf2.UnsupportedModelError, match="no trainable variables"):
        checkmate.tf2.compile(model, LOSS, "sgd")


def test_a_model_on_another_backend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = convnet()
    monkeypatch.setattr(keras.config, "backend", lambda: "jax")
    with pytest.raises(UnsupportedKerasError, match=r"'jax'.*KERAS_BACKEND=tensorflow"):
        checkmate.tf2.compile(model, LOSS, "sgd")


def test_xla_is_refused_for_the_whole_step() -> None:
    model = convnet()
    model.compile("sgd", LOSS, jit_compile=True)
    with pytest.raises(checkmate.tf2.UnsupportedModelError, match="leave out jit_compile=True"):
        checkmate.tf2.compile(model, LOSS, "sgd")


def test_a_model_for_which_keras_chose_xla_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    model = convnet()
    model.compile("sgd", LOSS)
    monkeypatch.setattr(model, "_jit_compile", True)  # as Keras does for "auto" on a GPU
    monkeypatch.setattr("checkmate_tf.api.compile.device_of_this_machine", lambda: "GPU:0")
    assert checkmate.tf2.compile(model, LOSS, "sgd").plans == ()


@pytest.mark.parametrize("loss", [None, 3, [SimpleNamespace()]])
def test_other_objects_than_losses_are_refused(loss: object) -> None:
    with pytest.raises(TypeError, match="loss"):
        checkmate.tf2.compile(convnet(), loss, "sgd")


def test_other_objects_than_optimizers_are_refused() -> None:
    with pytest.raises(TypeError, match="optimizer is None, must be one of Keras"):
        checkmate.tf2.compile(convnet(), LOSS, None)  # type: ignore[arg-type]


@pytest.mark.skipif(keras.version().startswith("3.3."), reason="Keras 3.3 trains with such labels")
def test_labels_of_another_structure_than_the_outputs_are_refused() -> None:
    inputs = {"ids": tf.zeros([32, 6], tf.int32), "x": tf.ones([32, 8])}
    with pytest.raises(checkmate.tf2.LossError, match=r"labels \(32,\) and outputs .*nested alike"):
        checkmate.tf2.compile(two_sided(), [LOSS, "mse"], "adam", inputs, tf.ones([32]), "100%", **CHEAP)

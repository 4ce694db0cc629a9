"""Layers recomputed by Keras: the same gradients, and the same step as in Keras' own scope."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from keras import layers

from checkmate_tf.api.trace import trace
from checkmate_tf.policies.remat import Remat, RematError, Used, applied, apply, code, draws
from checkmate_tf.private import sublayers

SPECS = (tf.TensorSpec([8, 16]), tf.TensorSpec([8, 16]))


class Pair(layers.Layer):  # type: ignore[misc]  # Keras has no types
    """Two layers and a sum, called with one tensor."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self.up = layers.Dense(32, "gelu", name="up")
        self.down = layers.Dense(16, name="down")

    def build(self, shape: Any) -> None:
        self.up.build(shape)
        self.down.build((*shape[:-1], 32))
        self.built = True

    def call(self, x: Any) -> Any:
        return x + self.down(self.up(x))


class Masked(Pair):
    """A pair that Keras calls with ``training``, and the model with a scale and a mask."""

    def call(self, x: Any, scale: Any = None, chosen: Any = None, training: bool | None = None) -> Any:
        del training
        return super().call(x) if scale is None else super().call(tf.where(chosen, x, 0.0)) * scale


def network() -> keras.Model:
    x = start = keras.Input([16])
    x = Pair(name="first")(x)
    x = Masked(name="second")(x, scale=keras.ops.exp(x), chosen=keras.ops.greater(x, 0.0))
    x = layers.Activation("gelu", name="third")(x)
    return keras.Model(start, Pair(name="fourth")(x))


def gradients(model: keras.Model) -> list[np.ndarray[Any, Any]]:
    """Of a loss, in a graph, as ``fit`` computes them."""
    x = tf.constant(np.random.default_rng(0).standard_normal((8, 16)), tf.float32)

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True) ** 2)
        return tape.gradient(loss, model.trainable_variables)

    return [np.asarray(g) for g in step()]


@pytest.fixture(scope="module")
def model() -> keras.Model:
    keras.utils.set_random_seed(0)
    return network()


names = st.lists(st.sampled_from(["first", "second", "third", "fourth", "up", "down"]), unique=True)
policies = st.one_of(names.map(lambda some: Remat(tuple(some))), st.just(Remat(activations=True)))


@given(policy=policies)
def test_gradients_stay_the_same_and_the_model_is_left_as_it_was(model: keras.Model, policy: Remat) -> None:
    plain = gradients(model)
    with applied(policy, model):
        found = gradients(model)
    for a, b in zip(plain, found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert not any("call" in vars(layer) for layer in sublayers(model))


def traced(make: Callable[[], keras.Model]) -> Any:
    return trace(make(), "mse", "sgd", *SPECS, cost_model="flops").graph


@pytest.mark.skipif(not hasattr(keras, "RematScope"), reason="came with Keras 3.9")
@given(policy=st.one_of(st.sampled_from([Remat(activations=True), Remat(("up",))]), policies))
def test_the_step_is_that_of_keras_own_scope(policy: Remat) -> None:
    def pairs() -> keras.Model:
        stack = [Pair(name="first"), Pair(name="second"), layers.Activation("gelu", name="third")]
        return keras.Sequential([keras.Input([16]), *stack, Pair(name="fourth")])

    def marked() -> keras.Model:
        mode = "activations" if policy.activations else "list_of_layers"
        with keras.RematScope(mode=mode, layer_names=list(policy.layers)):
            return pairs()

    model = pairs()
    with applied(policy, model) as used:
        here = traced(lambda: model)
    if used.with_keywords:
        with pytest.raises(ValueError, match="keywords arguments only when eager"):
            traced(marked)
    else:
        assert traced(marked).digest == here.digest


@pytest.mark.parametrize("policy", [Remat(("first", "second")), Remat(activations=True), Remat()])
def test_the_code_does_the_same(policy: Remat) -> None:
    model = network()
    with applied(policy, model) as used:
        expected = traced(lambda: model)
    pasted: dict[str, Any] = {}
    exec(code(policy, used), pasted)
    if policy != Remat():
        pasted["apply"](model)
    assert traced(lambda: model).digest == expected.digest
    assert ("Not in a graph" in code(policy, used)) == ("second" in policy.layers)


def test_without_keywords_the_code_shows_the_scope() -> None:
    assert 'with keras.RematScope(mode="list_of_layers", layer_names=LAYERS)' in code(Remat(("a",)), Used())


def test_an_unknown_layer_is_named(model: keras.Model) -> None:
    with pytest.raises(RematError, match="no layer 'fifth'"):
        apply(Remat(("first", "fifth")), model)


def test_a_layer_draws_if_a_layer_in_it_does() -> None:
    inner = keras.Sequential([keras.Input([4]), layers.Dropout(0.5)])
    assert draws(keras.Sequential([keras.Input([4]), inner]))
    assert not draws(keras.Sequential([keras.Input([4]), layers.Dropout(0.0)]))

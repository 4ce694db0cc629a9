"""The basic functions, by public names alone; also run on the wheels.

``CHECKMATE_SITE`` names the folder where the wheels are installed, if they are tested.
"""

from __future__ import annotations

import os
from pathlib import Path

import keras
import tensorflow as tf

import checkmate
import checkmate_tf
from checkmate import tf2

SITE = os.environ.get("CHECKMATE_SITE")


def test_the_installed_packages_are_tested() -> None:
    for package in (checkmate, checkmate_tf):
        assert SITE is None or Path(str(package.__file__)).is_relative_to(SITE)


def test_a_step_is_measured() -> None:
    x = tf.Variable(tf.ones([256, 512]))
    with tf2.memory_meter(x) as meter, tf.GradientTape() as tape:
        loss = tf.reduce_sum(x**2)
        tape.gradient(loss, x)
    assert (meter.base, meter.peak > meter.base) == (2**19, True)


def test_a_model_is_compiled_and_trained_within_a_budget() -> None:
    model = keras.Sequential([keras.Input([32]), keras.layers.Dense(64, "relu"), keras.layers.Dense(1)])
    specs = (tf.TensorSpec([128, 32]), tf.TensorSpec([128, 1]))
    train_iteration_fn = tf2.compile(model, "mse", "sgd", *specs, budget="100%")
    losses = [float(train_iteration_fn(tf.ones([128, 32]), tf.ones([128, 1]))[1]) for _ in range(3)]
    assert losses[0] > losses[1] > losses[2]


def test_the_interface_has_every_public_name() -> None:
    assert [name for name in checkmate_tf.__all__ if not hasattr(tf2, name)] == []

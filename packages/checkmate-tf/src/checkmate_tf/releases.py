"""The releases of TensorFlow and Keras that this package works with.

TensorFlow comes in several distributions with one import name (``tensorflow``, ``tensorflow-cpu``, nightly
and vendors' builds), so checkmate-tf depends on none of them and looks for any. Steps are captured and
replayed through names that TensorFlow keeps private (:mod:`checkmate_tf.private`) and that change between
releases. Keras must be Keras 3, which came with the oldest supported release.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib.util import find_spec

from checkmate import CheckmateError, MissingDistributionError
from checkmate.errors import install_hint
from checkmate.framework import Releases

__all__ = ["RELEASES", "UnsupportedKerasError", "check_installed", "check_model"]

RELEASES = Releases(
    framework="TensorFlow",
    distributions=(
        *("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tensorflow-cpu-aws", "tensorflow-macos"),
        *("tensorflow-rocm", "tf-nightly", "tf-nightly-cpu"),
    ),
    oldest=(2, 16),
    tried=(2, 21),
    needs=", with Keras 3",
)


class UnsupportedKerasError(CheckmateError, RuntimeError):
    """Keras does not run on TensorFlow, or a model belongs to Keras 2; the message says how to change it."""


@cache
def check_installed() -> None:
    """Check the installed TensorFlow, once.

    Raises:
        MissingDistributionError: if TensorFlow is not installed.
        UnsupportedReleaseError: if the installed release is too old.
    """
    if find_spec("tensorflow") is None:
        raise MissingDistributionError(
            f"'checkmate-tf' needs TensorFlow, and none is installed: {install_hint('checkmate-tf[cpu]')}; "
            "'checkmate-tf[gpu]' brings its CUDA build",
            name="tensorflow",
        )
    RELEASES.check_installed()


def check_model(model: object) -> None:
    """Raise unless this is a model of Keras 3 that runs on TensorFlow.

    Keras reads its backend once, from the variable ``KERAS_BACKEND`` or its file of settings, when it is
    first imported. Nothing is imported here: a Keras model exists only if Keras is imported already.

    Raises:
        TypeError: if it is not a Keras model.
        UnsupportedKerasError: if it is a Keras 2 model, or Keras runs on another backend; says what to do.
    """
    legacy, keras = sys.modules.get("tf_keras"), sys.modules.get("keras")
    if legacy is not None and isinstance(model, legacy.Model):
        raise UnsupportedKerasError(
            f"{type(model).__name__} is a model of Keras 2 (tf_keras), and Checkmate needs Keras 3: unset "
            "TF_USE_LEGACY_KERAS and build it with 'import keras'"
        )
    if keras is None or not isinstance(model, keras.Model):
        raise TypeError(
            f"model is {model!r:.80}, must be a keras.Model. For other training steps there is "
            "checkmate.tf2.function(step, budget='8GiB')"
        )
    if keras.config.backend() != "tensorflow":
        raise UnsupportedKerasError(
            f"{type(model).__name__} runs on Keras' backend {keras.config.backend()!r}, and Checkmate can "
            "plan it only on TensorFlow: set KERAS_BACKEND=tensorflow before Keras is first imported"
        )

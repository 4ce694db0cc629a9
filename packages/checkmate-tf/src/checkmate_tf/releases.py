"""Which TensorFlow this works with: OLDEST ≤ release; TRIED is the newest that the tests ran on.

TensorFlow comes in several distributions with one import name (``tensorflow``, ``tensorflow-cpu``, nightly
and vendors' builds), so checkmate-tf depends on none of them and looks for any. Steps are captured and
replayed through names that TensorFlow keeps to itself and that change between releases, and Keras must be
Keras 3, which came with OLDEST. To know the release needs no import of TensorFlow, so what is wrong is said
before something breaks.
"""

from __future__ import annotations

import logging
import re
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from checkmate import CheckmateError, MissingDistributionError
from checkmate.errors import install_hint

__all__ = [
    "UnsupportedKerasError",
    "UnsupportedReleaseError",
    "check_installed",
    "check_keras",
    "check_release",
]

OLDEST = (2, 16)
TRIED = (2, 21)

_DISTRIBUTIONS = (
    *("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tensorflow-cpu-aws", "tensorflow-macos"),
    *("tensorflow-rocm", "tf-nightly", "tf-nightly-cpu"),
)

_log = logging.getLogger(__name__)


class UnsupportedReleaseError(CheckmateError, RuntimeError):
    """TensorFlow is too old; the message says which releases work."""


class UnsupportedKerasError(CheckmateError, RuntimeError):
    """Keras does not run on TensorFlow, or the model is of Keras 2; the message says how to change that."""


@cache
def check_installed() -> None:
    """Check the TensorFlow that is installed, once.

    Raises:
        MissingDistributionError: if there is none.
        UnsupportedReleaseError: if it is too old.
    """
    if find_spec("tensorflow") is None:
        raise MissingDistributionError(
            f"'checkmate-tf' needs TensorFlow, and none is installed: {install_hint('checkmate-tf[cpu]')}; "
            "'checkmate-tf[gpu]' brings its CUDA build",
            name="tensorflow",
        )
    for distribution in _DISTRIBUTIONS:
        try:
            return check_release(version(distribution), distribution)
        except PackageNotFoundError:
            continue
    _log.info("TensorFlow is installed under a name that is not known: neither is its release")
    return None


def check_release(release: str, distribution: str = "tensorflow") -> None:
    """Refuse a release that is too old; warn of one that the tests have not met.

    Raises:
        UnsupportedReleaseError: if it is too old.

    >>> check_release("2.21.0")
    >>> check_release("2.15.1")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    checkmate_tf.releases.UnsupportedReleaseError: Checkmate needs TensorFlow 2.16 or newer, with Keras 3; ...
    """
    known = re.match(r"(\d+)\.(\d+)", release)
    if known is None:
        return
    found = (int(known[1]), int(known[2]))
    if found < OLDEST:
        raise UnsupportedReleaseError(
            f"Checkmate needs TensorFlow {_name(OLDEST)} or newer, with Keras 3; {distribution} {release} is "
            f"installed: pip install '{distribution}>={_name(OLDEST)}'"
        )
    if found > TRIED:
        _log.warning(
            "%s %s is newer than %s, the newest that Checkmate was tried with",
            distribution,
            release,
            _name(TRIED),
        )


def check_keras(model: object) -> None:
    """Refuse a Keras model that does not run on TensorFlow, or that is of Keras 2; for others do nothing.

    Keras reads its backend once, from the variable ``KERAS_BACKEND`` or its file of settings, when it is
    first imported. Nothing is imported here: a model can only come from a Keras that was.

    Args:
        model: what the user gave as a model.

    Raises:
        UnsupportedKerasError: with the way out.
    """
    legacy, keras = sys.modules.get("tf_keras"), sys.modules.get("keras")
    if legacy is not None and isinstance(model, legacy.Model):
        raise UnsupportedKerasError(
            f"{type(model).__name__} is a model of Keras 2 (tf_keras), and Checkmate needs Keras 3: unset "
            "TF_USE_LEGACY_KERAS and build it with 'import keras'"
        )
    if keras is not None and isinstance(model, keras.Model) and keras.config.backend() != "tensorflow":
        raise UnsupportedKerasError(
            f"{type(model).__name__} runs on Keras' backend {keras.config.backend()!r}, and Checkmate can "
            "plan it only on TensorFlow: set KERAS_BACKEND=tensorflow before Keras is first imported"
        )


def _name(release: tuple[int, int]) -> str:
    return f"{release[0]}.{release[1]}"

"""The installed TensorFlow and Keras: a missing one and models that can't run on it are refused."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

import checkmate.tf2
from checkmate import MissingDistributionError
from checkmate_tf.releases import RELEASES, UnsupportedKerasError, check_installed, check_model

PROJECT = Path(__file__).parents[2] / "packages" / "checkmate-tf" / "pyproject.toml"


@pytest.fixture(autouse=True)
def _unchecked() -> None:
    check_installed.cache_clear()


def test_both_extras_bound_the_releases_whose_private_names_are_used() -> None:
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    (oldest, minor), (newest, last) = RELEASES.oldest, RELEASES.tried
    for extra in ("cpu", "gpu"):
        tensorflow, keras = extras[extra]
        assert f">={oldest}.{minor},<{newest}.{last + 2}" in tensorflow
        assert re.fullmatch(r"keras>=3\.\d+,<4", keras)


def test_the_installed_release_passes() -> None:
    check_installed()


def test_without_tensorflow_both_ways_to_install_it_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("checkmate_tf.releases.find_spec", lambda _name: None)
    with pytest.raises(
        MissingDistributionError, match=r"install './packages/checkmate-tf\[cpu\]' in a clone.*\[gpu\]"
    ) as caught:
        check_installed()
    assert caught.value.name == "tensorflow"


def test_a_model_on_another_backend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import keras

    monkeypatch.setattr(keras.config, "backend", lambda: "torch")
    with pytest.raises(UnsupportedKerasError, match=r"'torch'.*KERAS_BACKEND=tensorflow"):
        check_model(keras.Sequential([keras.layers.Dense(1)]))


def test_a_model_of_keras_2_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Model:
        """Replaces ``tf_keras.Model``."""

    monkeypatch.setitem(sys.modules, "tf_keras", SimpleNamespace(Model=Model))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedKerasError, match=r"Keras 2.*TF_USE_LEGACY_KERAS"):
        check_model(Model())
    with pytest.raises(UnsupportedKerasError, match=r"Keras 2.*TF_USE_LEGACY_KERAS"):
        checkmate.tf2.Budget("60%").set_model(Model())


def test_a_model_of_keras_3_passes_and_nothing_else() -> None:
    import keras

    check_model(keras.Sequential([keras.layers.Dense(1)]))
    for other in (object(), keras.Sequential, None):
        with pytest.raises(TypeError, match=r"must be a keras.Model.*checkmate\.tf2\.function"):
            check_model(other)


def test_neither_the_package_nor_its_plugin_imports_tensorflow() -> None:
    code = """
import sys, checkmate_tf, checkmate_tf.plugin as plugin
plugin.checkmate_register_frontends()
print(*sys.modules)
"""
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "checkmate_tf.plugin" in loaded
    assert not {"tensorflow", "keras", "torch"} & set(loaded)

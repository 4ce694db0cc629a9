"""Settings for every test, in doctests and documentation too.

Tests that need TensorFlow or trainers of other libraries are left out where these are not installed. Deep
tests are marked for ``nox -s nightly``. Hypothesis draws few examples, the same in every run. The user's
cache is not touched. The state that Keras keeps is cleared after each test.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

collect_ignore_glob = [
    "docs/*.py",  # scripts; tests/torch and tests/tf run the tutorials among them
    "packages/*/hatch_build.py",  # hatchling is there in builds only
]

_project = tomllib.loads((Path(__file__).parent / "pyproject.toml").read_text(encoding="utf-8"))
collect_ignore: list[str] = []

if find_spec("tensorflow") is None:  # .nox/dev has PyTorch; .nox/tf, with TensorFlow, runs these
    collect_ignore += _project["tool"]["checkmate"]["needs-tensorflow"]
else:
    # TensorFlow reads these at import: few messages, one thread, an allocator that reports every buffer, and
    # oneDNN's kernels, the default on new CPUs only; without them workspaces would outweigh small networks.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
    os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "1")

if find_spec("lightning") is None:  # .nox/trainers has it, and runs these
    collect_ignore += _project["tool"]["checkmate"]["needs-trainers"]


_lines = (Path(__file__).parent / "tests" / "nightly.txt").read_text(encoding="utf-8").splitlines()
_NIGHTLY = tuple(line for line in _lines if line and not line.startswith("#"))

settings.register_profile("gate", derandomize=True, deadline=None, max_examples=10)
settings.register_profile("nightly", derandomize=False, deadline=None, max_examples=500, print_blob=True)
settings.load_profile("gate")  # --hypothesis-profile=nightly replaces it
_CONFORMANCE_EXAMPLES = 5


def pytest_configure(config: pytest.Config) -> None:
    """Register marks here: tests of the packages may be run from folders without our settings."""
    for mark in (
        "law: draws examples; nox -s laws draws many, other ones in each run",
        "nightly: deep or slow; nox -s nightly runs it, nox -s tests does not",
    ):
        config.addinivalue_line("markers", mark)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of the nightly list, and laws: they draw few examples unless the profile is nightly."""
    from checkmate.testing.conformance import harness  # not earlier: its coverage is measured

    harness.DERANDOMIZED = config.getoption("--hypothesis-profile") != "nightly"
    for item in items:
        if item.nodeid.startswith(_NIGHTLY):
            item.add_marker("nightly")
        cls = getattr(item, "cls", None)
        if cls is not None and issubclass(cls, harness.ManyExamples):
            item.add_marker("law")
            if harness.DERANDOMIZED:
                cls.examples = min(cls.examples, _CONFORMANCE_EXAMPLES)
        elif item.get_closest_marker("hypothesis"):
            item.add_marker("law")


@pytest.hookimpl(tryfirst=True)  # before the fixtures of modules and classes
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Set defaults for tests of a framework: costs are FLOPs; in PyTorch, the solver's time limit is 3 s.

    To time each op is slow, and differs between runs. TensorFlow's plans have a shorter limit by themselves.
    """
    from checkmate.framework import Options

    counts = item.nodeid.startswith(("tests/tf/", "tests/torch/")) and not item.get_closest_marker("measured")
    Options.default_cost_model = "flops" if counts else "profiled"
    Options.default_time_limit = 3.0 if counts and item.nodeid.startswith("tests/torch/") else 10.0


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _fresh_keras() -> Iterator[None]:
    """Where Keras is in use: fixed seeds before each test, default precision and names after it."""
    if (keras := sys.modules.get("keras")) is not None:
        keras.utils.set_random_seed(0)
    yield
    if (keras := sys.modules.get("keras")) is not None:
        keras.utils.clear_session(free_memory=False)  # the precision policy, too

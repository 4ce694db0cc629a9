"""For every test, doctests and documentation too.

What needs TensorFlow or the trainers of other libraries is left out where they are not installed; the tests
of core by which ``nox -s coverage`` measures are marked; the user's cache is not touched; Keras
forgets.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

collect_ignore_glob = [
    "docs/*.py",  # scripts; tests/torch and tests/tf run the tutorials among them
    "packages/*/hatch_build.py",  # hatchling is there in builds only
]

_project = tomllib.loads((Path(__file__).parent / "pyproject.toml").read_text(encoding="utf-8"))
collect_ignore: list[str] = []

if find_spec("tensorflow") is None:  # .nox/dev has PyTorch; .nox/tf, with TensorFlow, runs these
    collect_ignore += _project["tool"]["checkmate"]["needs-tensorflow"]
else:
    # Read when it is imported: no news of how it was built, one thread, an allocator that tells of all, and
    # oneDNN's kernels, the default on new CPUs only; on others, workspaces would outweigh small networks.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
    os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "1")

if find_spec("lightning") is None:  # .nox/trainers has it, and runs these
    collect_ignore += _project["tool"]["checkmate"]["needs-trainers"]


_CORE = tuple(Path(__file__).parent / folder for folder in ("tests/core", "packages/checkmate-core"))


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark here: tests of the packages may be run from folders without our settings."""
    config.addinivalue_line("markers", "covered: a test of core that nox -s coverage runs")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark core's own tests and doctests, but not the slow ones: their coverage is measured."""
    for item in items:
        if item.get_closest_marker("slow") is None and any(map(item.path.is_relative_to, _CORE)):
            item.add_marker("covered")


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

"""The plugin of checkmate-tf: the frontend of ``trace --tf``, the executor of ``run --tf``, ``export``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from checkmate.plugins import ExecutorSpec, FrontendSpec, Trial, hookimpl

if TYPE_CHECKING:
    import click

__all__ = ["checkmate_register_commands", "checkmate_register_executors", "checkmate_register_frontends"]


@hookimpl
def checkmate_register_frontends() -> list[FrontendSpec]:
    """The frontend of TensorFlow."""
    return [
        FrontendSpec(
            name="tf",
            summary="a factory of (model, loss, optimizer, input_spec, label_spec) or (function, arguments)",
            load=lambda: _module("adapters.frontend").Frontend(),
        )
    ]


@hookimpl
def checkmate_register_executors() -> list[ExecutorSpec]:
    """The executor of TensorFlow."""
    return [
        ExecutorSpec(
            name="tf",
            summary="steps traced by the frontend of the same name",
            load=lambda: _module("adapters.executor").Executor(),
            features=frozenset({"reorders"}),
            trials=_trials,
        )
    ]


@hookimpl
def checkmate_register_commands(cli: click.Group) -> None:
    """Add ``checkmate export --as keras-remat``."""
    from checkmate_tf.policies import command

    command.register(cli, partial(_module, "policies.export"))


def _trials() -> Sequence[Trial]:
    if "tensorflow" not in sys.modules:
        # TensorFlow reads this at import; with it the trials see every buffer (checkmate_tf.costs.events).
        os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "1")
    trials: Sequence[Trial] = _module("adapters.trials").TRIALS
    return trials


def _module(name: str) -> ModuleType:
    """A module of this package, which imports TensorFlow."""
    from checkmate_tf.releases import check_installed

    check_installed()
    # Hides TensorFlow's messages about its build, unless the user has set the level.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    return import_module(f"checkmate_tf.{name}")

"""The plugin that core loads: adds PyTorch's frontend, executor, exporter and commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from checkmate.plugins import (
    Executor,
    ExecutorSpec,
    Exporter,
    ExporterSpec,
    Frontend,
    FrontendSpec,
    Trial,
    hookimpl,
)

if TYPE_CHECKING:
    import click

__all__ = [
    "checkmate_register_commands",
    "checkmate_register_executors",
    "checkmate_register_exporters",
    "checkmate_register_frontends",
]


@hookimpl
def checkmate_register_frontends() -> list[FrontendSpec]:
    """Register the frontend ``torch``."""
    return [
        FrontendSpec(
            name="torch",
            summary="a factory of (model, example_inputs) or (model, example_inputs, loss)",
            load=_frontend,
        )
    ]


@hookimpl
def checkmate_register_executors() -> list[ExecutorSpec]:
    """Register the executor ``torch``."""
    return [
        ExecutorSpec(
            name="torch",
            summary="models traced by the frontend of the same name",
            load=_executor,
            features=frozenset({"reorders"}),
            trials=_trials,
        )
    ]


@hookimpl
def checkmate_register_exporters() -> list[ExporterSpec]:
    """Register the exporter ``memory-viz``, PyTorch's memory snapshot."""
    return [
        ExporterSpec(
            name="memory-viz",
            summary="allocations and frees, as pytorch.org/memory_viz shows them",
            suffix=".memory_viz.pickle",
            load=_exporter,
        )
    ]


@hookimpl
def checkmate_register_commands(cli: click.Group) -> None:
    """Add ``checkmate demo``, ``selfcheck``, ``fit``, ``judge`` and ``export``."""
    from checkmate_torch import selfcheck
    from checkmate_torch.policies import command as policies_command
    from checkmate_torch.tools import commands
    from checkmate_torch.tools.fit import command as fit_command

    commands.register(cli)
    fit_command.register(cli)
    policies_command.register(cli)
    selfcheck.register(cli)


def _exporter() -> Exporter:
    from checkmate_torch.memory.snapshot import MemoryVizSnapshot

    return MemoryVizSnapshot()


def _frontend() -> Frontend:
    from checkmate_torch.adapters.frontend import Frontend as TorchFrontend

    return TorchFrontend()


def _executor() -> Executor:
    from checkmate_torch.adapters import executor

    return executor.Executor()


def _trials() -> Sequence[Trial]:
    from checkmate_torch.adapters import trials

    return trials.TRIALS

"""What this distribution adds to Checkmate: frontend, executor, exporter, and three commands."""

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
    """PyTorch's."""
    return [
        FrontendSpec(
            name="torch",
            summary="a factory of (model, example_inputs) or (model, example_inputs, loss)",
            load=_frontend,
        )
    ]


@hookimpl
def checkmate_register_executors() -> list[ExecutorSpec]:
    """PyTorch's."""
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
    """PyTorch's memory snapshot."""
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
    """Add ``checkmate demo``, ``checkmate selfcheck`` and ``checkmate fit``."""
    from checkmate_torch.tools.commands import register
    from checkmate_torch.tools.fit.command import register_fit

    register(cli)
    register_fit(cli)


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

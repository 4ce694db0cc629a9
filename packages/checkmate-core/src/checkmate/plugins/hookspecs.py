"""The hooks of Checkmate: the functions that a plugin may define, each marked with :data:`hookimpl`.

A plugin is a module named by an entry point of the group ``checkmate``. Every ``register`` hook returns
light, frozen specs; nothing heavy is imported until a spec's ``load`` is called.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pluggy

from checkmate.plugins.specs import CostModelSpec, ExecutorSpec, ExporterSpec, FrontendSpec, SolverSpec

if TYPE_CHECKING:
    import click

__all__ = ["PROJECT", "hookimpl", "hookspec"]

PROJECT = "checkmate"
"""Name of the pluggy project and of the entry-point group."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def checkmate_register_solvers() -> Iterable[SolverSpec]:  # type: ignore[empty-body]
    """The solvers that this plugin offers."""


@hookspec
def checkmate_register_cost_models() -> Iterable[CostModelSpec]:  # type: ignore[empty-body]
    """The cost models that this plugin offers."""


@hookspec
def checkmate_register_frontends() -> Iterable[FrontendSpec]:  # type: ignore[empty-body]
    """The frontends that this plugin offers; a frontend turns a program into a graph."""


@hookspec
def checkmate_register_executors() -> Iterable[ExecutorSpec]:  # type: ignore[empty-body]
    """The executors that this plugin offers; an executor makes a callable of a program and a schedule."""


@hookspec
def checkmate_register_exporters() -> Iterable[ExporterSpec]:  # type: ignore[empty-body]
    """The exporters that this plugin offers; an exporter writes a timeline to a file."""


@hookspec
def checkmate_register_commands(cli: click.Group) -> None:
    """Add commands to the command line.

    Commands of one name whose options ``--as`` have different values become one command with all values.
    """

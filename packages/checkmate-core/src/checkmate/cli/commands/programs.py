"""The program that a command traces or runs: an option ``--NAME MODULE:FACTORY`` for each plugin that can."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from functools import reduce
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast

import click

from checkmate.cli.exits import BadInput
from checkmate.errors import install_hint
from checkmate.model.graph import DFGraph
from checkmate.plugins import ExecutorSpec, Frontend, FrontendSpec, Traced
from checkmate.problem.problem import Progress

__all__ = ["Program", "ProgramCommand", "cost_model", "graph_of", "tracing_options"]

_INSTALL = f"for PyTorch {install_hint('checkmate-torch')}; for TensorFlow the same with 'checkmate-tf[cpu]'"


class Program(NamedTuple):
    """A program as the user names it: the name of a frontend, and ``MODULE:FACTORY``."""

    framework: str
    factory: str

    def load(self) -> Callable[..., Any]:
        """The factory.

        Raises:
            BadInput: if no module or function has this name.
        """
        module, colon, name = self.factory.partition(":")
        if not (module and colon and name):
            raise BadInput(
                f"{self.factory!r} is not of the form MODULE:FACTORY, as in 'package.module:factory'"
            )
        try:
            found = _imported(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise BadInput(f"{module!r} needs {error.name!r}, which is not installed") from error
            raise BadInput(f"there is no module {error.name!r}, here or installed") from error
        try:
            return cast("Callable[..., Any]", reduce(getattr, name.split("."), found))
        except AttributeError as error:
            raise BadInput(f"module {module!r} has no {name!r}") from error


class ProgramCommand(click.Command):
    """A command whose ``program`` comes from the one option ``--NAME MODULE:FACTORY`` that the user gave.

    Listing the options loads the plugins.
    """

    def __init__(
        self,
        *args: Any,
        offered: Callable[[], Sequence[FrontendSpec | ExecutorSpec]],
        kind: str,
        **kwargs: Any,
    ) -> None:
        """Store the lister of the plugins' specs, and the word for their kind in messages."""
        super().__init__(*args, **kwargs)
        self._offered, self._kind = offered, kind

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The options of the plugins, then the others."""
        programs: list[click.Parameter] = [
            click.Option(
                [f"--{spec.name}", f"program_{k}"],
                metavar="MODULE:FACTORY",
                help=f"With the {self._kind} {spec.name!r}: {spec.summary}.",
            )
            for k, spec in enumerate(self._offered())
        ]
        return [*programs, *super().get_params(ctx)]

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command with its program.

        Raises:
            BadInput: if the user gave no program, or several; if no plugin is installed.
        """
        asked = {spec.name: ctx.params.pop(f"program_{k}") for k, spec in enumerate(self._offered())}
        given = [Program(name, text) for name, text in asked.items() if text is not None]
        if not asked:
            raise BadInput(f"no {self._kind} is installed: {_INSTALL}")
        if len(given) != 1:
            names = " or ".join(f"--{name} MODULE:FACTORY" for name in asked)
            raise BadInput(f"say what to {self.name}, once: {names}")
        ctx.params["program"] = given[0]
        return super().invoke(ctx)


cost_model = click.option(
    "--cost-model", metavar="NAME", help="The cost of ops; each frontend has a default."
)


def tracing_options(
    frontend: Frontend, cost_model: str | None, on_progress: Callable[[Progress], None]
) -> dict[str, Any]:
    """The options for a frontend's ``trace``: the chosen cost model, and progress if it reports any."""
    options: dict[str, Any] = {} if cost_model is None else {"cost_model": cost_model}
    known = inspect.signature(frontend.trace).parameters
    if "on_progress" in known or any(p.kind is p.VAR_KEYWORD for p in known.values()):
        options["on_progress"] = on_progress
    return options


def graph_of(traced: Traced, by: str) -> DFGraph:
    """The graph that a plugin traced.

    Raises:
        BadInput: if it is not a graph; names the plugin as ``by``.
    """
    graph: object = traced.graph
    if not isinstance(graph, DFGraph):
        raise BadInput(f"the {by} gave a {type(graph).__name__}, not a graph")
    return graph


def _imported(module: str) -> ModuleType:
    """A module of the current folder, or else an installed one.

    Its own imports look in that folder last, so that no module there hides an installed one.
    """
    here, top = str(Path.cwd()), module.partition(".")[0]
    if here not in sys.path:
        sys.path.append(here)
    spec = None
    if top not in sys.modules and top not in sys.stdlib_module_names:
        spec = PathFinder.find_spec(top, [here])
    if spec is not None and spec.loader is not None:
        sys.modules[top] = found = module_from_spec(spec)
        try:
            spec.loader.exec_module(found)
        except BaseException:
            del sys.modules[top]
            raise
    return import_module(module)

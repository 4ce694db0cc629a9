"""``checkmate trace``: the graph of a program, as a file; each frontend has an option."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from functools import reduce
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import click

from checkmate.cli import options
from checkmate.cli.exits import BadInput
from checkmate.cli.printing import foreign_code, print_json, say
from checkmate.cli.progress import steps
from checkmate.cli.show import graph_facts, print_graph
from checkmate.errors import install_hint
from checkmate.graph import DFGraph
from checkmate.plugins import FRONTENDS
from checkmate.serialize import write_graph

__all__ = ["trace"]

_NO_FRONTEND = (
    "no frontend is installed: for PyTorch "
    f"{install_hint('checkmate-torch')}; for TensorFlow the same with 'checkmate-tf[cpu]'"
)


class _OptionPerFrontend(click.Command):
    """A command with an option ``--NAME PROGRAM`` for each frontend; listing them loads the plugins."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The options of the frontends, then the others."""
        programs: list[click.Parameter] = [
            click.Option(
                [f"--{spec.name}", f"program_{k}"],
                metavar="MODULE:FACTORY",
                help=f"Trace with the frontend {spec.name!r}: {spec.summary}.",
            )
            for k, spec in enumerate(FRONTENDS.specs())
        ]
        return [*programs, *super().get_params(ctx)]


@click.command(
    cls=_OptionPerFrontend,
    epilog=options.examples(
        "checkmate trace --torch package.module:factory -o graph.json",
        "checkmate trace --torch train:step --cost-model roofline-A100-80GB -o graph.json",
    ),
)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    callback=options.new_file,
    help="The graph; as msgpack if the name ends in .msgpack, else as JSON.",
)
@click.option("--cost-model", metavar="NAME", help="The cost of ops; each frontend has a default.")
@options.as_json
def trace(output: Path, cost_model: str | None, as_json: bool, **programs: str | None) -> None:
    """Trace one training step, without running it, and write its graph to a file.

    MODULE:FACTORY names a function without arguments, in an importable module; the documentation of the
    frontend says what it must return.

    Exit codes: 0 ok; 2 bad input.
    """
    asked = {spec.name: programs.get(f"program_{k}") for k, spec in enumerate(FRONTENDS.specs())}
    given = {name: text for name, text in asked.items() if text is not None}
    if len(given) != 1:
        names = " or ".join(f"--{name} MODULE:FACTORY" for name in asked)
        raise BadInput(f"say what to trace, once: {names}" if asked else _NO_FRONTEND)
    ((name, text),) = given.items()
    settings: dict[str, Any] = {} if cost_model is None else {"cost_model": cost_model}
    with foreign_code(), steps("tracing") as tell:
        frontend = FRONTENDS.load(name)
        if _takes(frontend.trace, "on_progress"):
            settings["on_progress"] = tell
        graph: object = frontend.trace(_named(text), **settings).graph
    if not isinstance(graph, DFGraph):
        raise BadInput(f"the frontend {name!r} gave a {type(graph).__name__}, not a graph")
    write_graph(output, graph)
    say(f"{output}: {graph!r}, by the frontend {name!r}.")
    facts = graph_facts(graph)
    if as_json:
        print_json({"output": os.fsencode(output).decode(errors="backslashreplace"), "graph": facts})
    else:
        print_graph(graph, facts)


def _takes(function: Callable[..., object], argument: str) -> bool:
    """Whether a function accepts an argument of this name."""
    try:
        known = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    return argument in known or any(p.kind is p.VAR_KEYWORD for p in known.values())


def _named(text: str) -> Callable[..., Any]:
    """The object that ``package.module:name`` names."""
    module, colon, name = text.partition(":")
    if not (module and colon and name):
        raise BadInput(f"{text!r} is not of the form MODULE:FACTORY, as in 'package.module:factory'")
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

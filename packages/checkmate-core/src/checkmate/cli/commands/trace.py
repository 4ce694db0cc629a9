"""``checkmate trace``: write the graph of a program to a file; each frontend adds an option."""

from __future__ import annotations

import os
from pathlib import Path

import click

from checkmate.cli import options
from checkmate.cli.commands.programs import Program, ProgramCommand, cost_model, graph_of, tracing_options
from checkmate.cli.commands.show import graph_facts, print_graph
from checkmate.cli.output import foreign_code, print_json, say
from checkmate.cli.progress import steps
from checkmate.files.serialize import write_graph
from checkmate.plugins import FRONTENDS

__all__ = ["trace"]


@click.command(
    cls=ProgramCommand,
    offered=FRONTENDS.specs,
    kind="frontend",
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
@cost_model
@options.as_json
def trace(program: Program, output: Path, cost_model: str | None, as_json: bool) -> None:
    """Trace one training step, without running it, and write its graph to a file.

    MODULE:FACTORY names a function without arguments, in an importable module; the documentation of the
    frontend says what it must return.

    Exit codes: 0 ok; 2 bad input.
    """
    with foreign_code(), steps("tracing") as tell:
        frontend = FRONTENDS.load(program.framework)
        traced = frontend.trace(program.load(), **tracing_options(frontend, cost_model, tell))
        graph = graph_of(traced, f"frontend {program.framework!r}")
    write_graph(output, graph)
    say(f"{output}: {graph!r}, by the frontend {program.framework!r}.")
    facts = graph_facts(graph)
    if as_json:
        print_json({"output": os.fsencode(output).decode(errors="backslashreplace"), "graph": facts})
    else:
        print_graph(graph, facts)

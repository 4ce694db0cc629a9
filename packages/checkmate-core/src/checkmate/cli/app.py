"""The command line put together: ``checkmate`` and its built-in commands; plugins add theirs on demand."""

from __future__ import annotations

import click

from checkmate import __version__
from checkmate.cli.commands.installation import cache, doctor, plugins
from checkmate.cli.commands.run import run
from checkmate.cli.commands.show import show, simulate
from checkmate.cli.commands.solve import solve
from checkmate.cli.commands.sweep import sweep
from checkmate.cli.commands.trace import trace
from checkmate.cli.group import App
from checkmate.cli.options import examples

__all__ = ["app"]


@click.group(
    cls=App,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "checkmate show graph.json",
        "checkmate solve graph.json --budget 60% -o schedule.json",
        "checkmate show graph.json schedule.json",
    ),
)
@click.version_option(__version__, prog_name="checkmate")
def app() -> None:
    """Train within a byte budget: find and judge schedules that recompute instead of store.

    Exit codes: 0 ok; 1 infeasible, none found or not valid; 2 bad input; 130 Ctrl-C; 143 SIGTERM.
    """


for _command in (trace, solve, simulate, sweep, show, run, plugins, cache, doctor):
    app.add_command(_command)

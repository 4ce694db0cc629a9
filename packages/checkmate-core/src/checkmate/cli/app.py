"""The command line put together: ``checkmate`` and its built-in commands; plugins add theirs on demand."""

from __future__ import annotations

import click

from checkmate import __version__
from checkmate.cli.cache import cache
from checkmate.cli.doctor import doctor
from checkmate.cli.group import App
from checkmate.cli.options import examples
from checkmate.cli.plugins import plugins
from checkmate.cli.run import run
from checkmate.cli.show import show
from checkmate.cli.simulate import simulate
from checkmate.cli.solve import solve
from checkmate.cli.sweep import sweep
from checkmate.cli.trace import trace

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

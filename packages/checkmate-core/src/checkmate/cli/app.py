"""The command ``checkmate``: its built-in commands, and the commands of plugins, loaded on demand."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import click

from checkmate import __version__
from checkmate.cli.commands.installation import cache, doctor, plugins
from checkmate.cli.commands.run import run
from checkmate.cli.commands.show import show, simulate
from checkmate.cli.commands.solve import solve
from checkmate.cli.commands.sweep import sweep
from checkmate.cli.commands.trace import trace
from checkmate.cli.exits import clean_exits
from checkmate.cli.options import examples
from checkmate.cli.output import foreign_code, say
from checkmate.cli.targets import ByTarget, targets_of
from checkmate.errors import (
    CheckmateError,
    MissingDistributionError,
    PluginError,
    install_hint,
)
from checkmate.plugins import command_errors, installed_plugins, register_commands
from checkmate.text.logs import LOGGERS
from checkmate.text.printable import excerpt

__all__ = ["App", "app"]

_ELSEWHERE = {
    "demo": ("checkmate-torch", "checkmate-solvers checkmate-torch[demo]"),
    "fit": ("checkmate-torch", "checkmate-core[cli] checkmate-torch[solvers]"),
}
"""Commands of other distributions of this project, and the requirement to install for each."""


class _EchoHandler(logging.Handler):
    """Prints the warnings of Checkmate's packages on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        say(f"{record.levelname.capitalize()}: {record.getMessage()}")


class App(click.Group):
    """A command group that loads the commands of plugins and maps Checkmate's errors to exit codes."""

    _asked = False
    _turn = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Begin without plugins, which are loaded when needed."""
        super().__init__(*args, **kwargs)
        self._owners: dict[str, str] = {}

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; a Checkmate error or an unusable file becomes one line, not a traceback."""
        handler = _EchoHandler(logging.WARNING)
        for name in LOGGERS:
            logging.getLogger(name).addHandler(handler)
        try:
            with _one_line_errors(), clean_exits():
                return super().invoke(ctx)
        finally:
            for name in LOGGERS:
                logging.getLogger(name).removeHandler(handler)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Read the options before the command."""
        with _one_line_errors():
            return super().make_context(*args, **kwargs)

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command; a name that exists is refused, so that no plugin replaces a built-in command.

        Commands of plugins that have different values of an option ``--as`` become one command.
        """
        key = name or cmd.name or ""
        known = self.commands.get(key, cmd)
        if known is not cmd and targets_of(cmd) and targets_of(known):
            parts = known.parts if isinstance(known, ByTarget) else (known,)
            self.commands[key] = ByTarget(key, [*parts, cmd])
            self._owners[key] += f", {self._turn}"
            return
        if known is not cmd:
            raise PluginError(f"there is already a command {key!r}")
        super().add_command(cmd, name)
        if self._turn:
            self._owners[key] = self._turn

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name; plugins are loaded only if it is not built in."""
        command = super().get_command(ctx, cmd_name)
        if command is None:
            self._ask_plugins()
            command = super().get_command(ctx, cmd_name)
            if command is None and cmd_name in _ELSEWHERE:
                raise _absent(cmd_name)
        return command

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands, built-in ones and the plugins'."""
        self._ask_plugins()
        for plugin, error in command_errors().items():
            say(f"Warning: plugin {plugin} failed to add its commands: {error}")
        return super().list_commands(ctx)

    def command_owners(self) -> dict[str, str]:
        """The plugin that added each command; built-in ones are not listed."""
        self._ask_plugins()
        return dict(self._owners)

    def _ask_plugins(self) -> None:
        if not self._asked:
            self._asked = True
            with foreign_code():
                register_commands(self, announce=partial(setattr, self, "_turn"))
            self._turn = ""


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Make the message of each click error one printable line: messages quote names, paths and arguments."""
    try:
        yield
    except click.ClickException as error:
        error.message = excerpt(error.message)  # type: ignore[misc]
        raise


def _absent(command: str) -> CheckmateError:
    """The reason for a missing command: its plugin is broken, or not installed."""
    distribution, requirement = _ELSEWHERE[command]
    failed = {p.owner: p.error for p in installed_plugins() if p.error is not None} | command_errors()
    for owner, error in failed.items():
        if f"({distribution} " in owner:
            return PluginError(f"'checkmate {command}' comes with plugin {owner}, which failed: {error}")
    return MissingDistributionError(
        f"'checkmate {command}' needs the '{distribution}' distribution: {install_hint(requirement)}"
    )


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

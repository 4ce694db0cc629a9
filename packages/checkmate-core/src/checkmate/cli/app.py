"""The group of all commands: built-in ones first, those of plugins on demand; errors become one line."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import click

from checkmate import __version__
from checkmate.cli.commands import plugins, simulate, solve
from checkmate.errors import CheckmateError, InfeasibleBudgetError, MissingDistributionError, PluginError
from checkmate.plugins import installed_plugins, register_commands

__all__ = ["App", "app"]

_ELSEWHERE = {"demo": ("checkmate-torch", "checkmate-torch[demo]")}
"""Commands that we know to come with another distribution, and how to get them."""


class _NothingFound(click.ClickException):
    exit_code = 1


class _BadInput(click.ClickException):
    exit_code = 2


class _EchoHandler(logging.Handler):
    """Warnings of the library, on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(f"{record.levelname.capitalize()}: {record.getMessage()}", err=True)


class App(click.Group):
    """A group that knows plugins' commands and how Checkmate's errors map to exit codes."""

    _broken: dict[str, str] | None = None  # plugins that failed to add their commands; None = not asked yet

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; a Checkmate error or an unusable file is one clear line, not a traceback."""
        log, handler = logging.getLogger("checkmate"), _EchoHandler()
        log.addHandler(handler)
        try:
            return super().invoke(ctx)
        except InfeasibleBudgetError as error:
            raise _NothingFound(str(error)) from error
        except (CheckmateError, OSError) as error:
            raise _BadInput(str(error)) from error
        finally:
            log.removeHandler(handler)

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command; the first of a name stays, so that no plugin replaces a built-in one."""
        key = name or cmd.name or ""
        if self.commands.get(key, cmd) is not cmd:
            raise PluginError(f"there is already a command {key!r}")
        super().add_command(cmd, name)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Built-in commands need no plugin; any other name is worth loading them."""
        command = super().get_command(ctx, cmd_name)
        if command is None:
            broken = self._ask_plugins()
            command = super().get_command(ctx, cmd_name)
            if command is None and cmd_name in _ELSEWHERE:
                raise _absent(cmd_name, broken)
        return command

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands, those of plugins included."""
        for plugin, error in self._ask_plugins().items():
            click.echo(f"Warning: plugin {plugin} failed to add its commands: {error}", err=True)
        return super().list_commands(ctx)

    def _ask_plugins(self) -> dict[str, str]:
        if self._broken is None:
            self._broken = register_commands(self)
        return self._broken


def _absent(command: str, broken: Mapping[str, str]) -> CheckmateError:
    """Why a known command is not there: its plugin is broken, or not installed."""
    distribution, requirement = _ELSEWHERE[command]
    failed = {p.owner: p.error for p in installed_plugins() if p.error is not None} | dict(broken)
    for owner, error in failed.items():
        if f"({distribution} " in owner:
            return PluginError(f"'checkmate {command}' comes with plugin {owner}, which failed: {error}")
    return MissingDistributionError(
        f"'checkmate {command}' needs the '{distribution}' distribution: pip install '{requirement}'"
    )


@click.group(cls=App, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="checkmate")
def app() -> None:
    """Train within a byte budget: find and judge schedules that recompute instead of store."""


for _command in (solve, simulate, plugins):
    app.add_command(_command)

"""The failures of a command: each is one line on stderr, and an exit code.

1    no schedule: the budget is infeasible, or none was found; or the schedule is not valid, or a training
     step held more than the simulator says
2    bad input: an argument or file can't be used
130  interrupted (128 + SIGINT); 143 and 129 after SIGTERM and SIGHUP (:mod:`checkmate.cli.signals`)
141  the reader of the output has closed it (128 + SIGPIPE)
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from checkmate.errors import CheckmateError, InfeasibleBudgetError, InvalidScheduleError

__all__ = ["BadInput", "Failed", "Interrupted", "NotValid", "clean_exits"]


class Failed(click.ClickException):
    """There is no schedule, or a training step held more bytes than the simulator says."""

    exit_code = 1


class NotValid(Failed):
    """The judge rejects a schedule, which is the answer of the command, not an error."""

    def show(self, file: object = None) -> None:
        """Print one line, without click's "Error:"."""
        click.echo(f"Not valid: {self.format_message()}", err=True)


class BadInput(click.ClickException):
    """An argument or file can't be used."""

    exit_code = 2


class Interrupted(click.ClickException):
    """Ctrl-C, or another signal that ends a command."""

    exit_code = 130

    def show(self, file: object = None) -> None:
        """Print one line; an interrupt is not an error."""
        start = "\n" if sys.stderr.isatty() else ""  # after the terminal's own ^C
        click.echo(start + self.format_message(), err=True)


@contextmanager
def clean_exits() -> Iterator[None]:
    """Turn errors that users cause into one clear line and an exit code; a defect keeps its traceback."""
    try:
        yield
    except InfeasibleBudgetError as error:
        raise Failed(str(error)) from error
    except InvalidScheduleError as error:
        raise NotValid(str(error)) from error
    except BrokenPipeError as error:
        raise BrokenPipeError from error  # without an errno: click would turn EPIPE into exit code 1
    except (CheckmateError, OSError) as error:
        raise BadInput(str(error)) from error
    except MemoryError as error:
        raise BadInput("there is not enough memory: use a smaller graph, or a larger machine") from error
    except KeyboardInterrupt as error:
        raise Interrupted("Interrupted.") from error

"""How a command ends when it does not end well: one line on stderr, and an exit code.

1    no schedule: the budget is infeasible, or none was found; or the schedule is not valid
2    bad input: what was given can't be used
130  interrupted (128 + SIGINT); 143 and 129 after SIGTERM and SIGHUP: :mod:`checkmate.cli.signals` sees to it
141  the reader of the output has gone (128 + SIGPIPE)
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from checkmate.errors import CheckmateError, InfeasibleBudgetError, InvalidScheduleError

__all__ = ["BadInput", "Interrupted", "NoSchedule", "NotValid", "clean_exits"]


class NoSchedule(click.ClickException):
    """There is no schedule."""

    exit_code = 1


class NotValid(click.ClickException):
    """The judge rejects a schedule: an answer, and no error."""

    exit_code = 1

    def show(self, file: object = None) -> None:
        """Only the line."""
        click.echo(f"Not valid: {self.format_message()}", err=True)


class BadInput(click.ClickException):
    """What was given can't be used."""

    exit_code = 2


class Interrupted(click.ClickException):
    """Ctrl-C, or another signal that ends a command."""

    exit_code = 130

    def show(self, file: object = None) -> None:
        """Only the line: to be interrupted is no error."""
        start = "\n" if sys.stderr.isatty() else ""  # after the terminal's own ^C
        click.echo(start + self.format_message(), err=True)


@contextmanager
def clean_exits() -> Iterator[None]:
    """Turn what users cause into one clear line and its exit code; a defect keeps its traceback."""
    try:
        yield
    except InfeasibleBudgetError as error:
        raise NoSchedule(str(error)) from error
    except InvalidScheduleError as error:
        raise NotValid(str(error)) from error
    except BrokenPipeError as error:
        raise BrokenPipeError from error  # without a number, for click answers EPIPE with exit code 1
    except (CheckmateError, OSError) as error:
        raise BadInput(str(error)) from error
    except MemoryError as error:
        raise BadInput("there is not enough memory for this: give less, or use a larger machine") from error
    except KeyboardInterrupt as error:
        raise Interrupted("Interrupted.") from error

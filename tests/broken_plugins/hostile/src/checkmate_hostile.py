"""A plugin whose commands fail, and whose solvers lie or can't be loaded."""

import click

from checkmate import Problem
from checkmate.plugins import SolverSpec, hookimpl


class _Crash:
    def solve(self, problem: Problem) -> object:
        return "42"


def _needs_something() -> _Crash:
    raise ImportError("No module named 'everest'")


@hookimpl
def checkmate_register_solvers() -> list[SolverSpec]:
    """Three solvers that are no good."""
    return [
        SolverSpec(name="liar", summary="returns a string", load=_Crash),  # type: ignore[arg-type]
        SolverSpec(name="absent", summary="can't load", load=_needs_something, requires=("everest",)),  # type: ignore[arg-type]
        SolverSpec(name="nothing", summary="has no solve()", load=object),  # type: ignore[arg-type]
    ]


@hookimpl
def checkmate_register_commands(cli: click.Group) -> None:
    """Fails."""
    raise KeyError("commands")

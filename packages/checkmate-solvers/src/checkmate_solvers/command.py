"""``checkmate warm-up``: compile the local search now, rather than beside the first solves."""

from __future__ import annotations

import click

__all__ = ["register"]


def register(cli: click.Group) -> None:
    """Add the command."""
    cli.add_command(_warm_up)


@click.command("warm-up")
def _warm_up() -> None:
    """Compile the local search of 'auto', if that has not been done on this machine.

    It takes about half a minute. Without this, the first solves go on without the local search while it is
    compiled in the background. Run it where an image or an environment is made.

    Exit codes: 0 it is compiled; 2 it can't be.
    """
    from checkmate_solvers.machine import compilation
    from checkmate_solvers.machine.code import machine_code

    machine_code()
    click.echo(f"The local search is compiled, in {compilation.folder()}.")

"""``checkmate warm-up``: compile the local search now instead of beside the first solves."""

from __future__ import annotations

import click

__all__ = ["warm_up"]


@click.command
def warm_up() -> None:
    """Compile the local search of 'auto', unless this machine has it compiled.

    It takes about half a minute. Without this command, the first solves work without the local search while
    it is compiled in the background. Run it where an image or an environment is built.

    Exit codes: 0 the local search is compiled; 2 it can't be compiled.
    """
    from checkmate_solvers.machine import compilation
    from checkmate_solvers.machine.code import machine_code

    machine_code()
    click.echo(f"The local search is compiled, in {compilation.folder()}.")

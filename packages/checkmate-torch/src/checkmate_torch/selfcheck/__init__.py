"""``python -m checkmate_torch.selfcheck``: check whether Checkmate works on this machine and device.

The checks need PyTorch and the core package, no network and no test framework. Each slice of the checks runs
in a process of its own, so that a crash ends that slice only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

__all__ = ["register"]


def register(cli: click.Group) -> None:
    """Add the command ``selfcheck``; PyTorch is imported when the command runs."""
    import click

    @cli.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    @click.pass_context
    def selfcheck(ctx: click.Context, /, arguments: tuple[str, ...]) -> None:
        """Check this machine and its PyTorch: bits, peaks, tools; --help lists the options."""
        from checkmate_torch.selfcheck.__main__ import main

        ctx.exit(main(arguments, program=ctx.command_path))

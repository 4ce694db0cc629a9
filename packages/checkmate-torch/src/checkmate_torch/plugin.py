"""What this distribution adds to Checkmate: the command ``checkmate demo``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkmate.plugins import hookimpl

if TYPE_CHECKING:
    import click

__all__ = ["checkmate_register_commands"]


@hookimpl
def checkmate_register_commands(cli: click.Group) -> None:
    """Add ``checkmate demo``."""
    from checkmate_torch.command import register

    register(cli)

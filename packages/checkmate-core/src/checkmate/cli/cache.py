"""``checkmate cache``: the schedules and the timings of ops that are kept on disk, shown or deleted."""

from __future__ import annotations

from typing import NamedTuple

import click

from checkmate.cli import options
from checkmate.cli.printing import print_json, print_table
from checkmate.cost.measured import profiles_directory, profiles_in
from checkmate.files.cache import default_directory
from checkmate.files.disk import delete_entries, entries
from checkmate.units import format_bytes

__all__ = ["cache"]


class _Kept(NamedTuple):
    kind: str
    entries: int
    bytes: int
    directory: str


@click.command(
    epilog=options.examples("checkmate cache info", "checkmate cache info --json", "checkmate cache clear")
)
@click.argument("action", type=click.Choice(["info", "clear"]))
@options.as_json
def cache(action: str, as_json: bool) -> None:
    """Show the number, bytes and place of cached schedules and timings of ops, or delete them.

    Deleted schedules are solved again, and deleted timings taken again, when they are needed.
    """
    profiles = profiles_in(profiles_directory())
    numbers = {default_directory(): len(entries(default_directory())), profiles_directory(): len(profiles)}
    kept = [
        _Kept(kind, number, sum(file.stat().st_size for file in entries(folder)), str(folder))
        for kind, (folder, number) in zip(("schedules", "timings"), numbers.items(), strict=True)
    ]
    if action == "clear":
        for folder in numbers:
            delete_entries(folder)
    unsteady = sum(profile.to_repeat for profile in profiles)
    if as_json:
        print_json({"action": action, "kept": [each._asdict() for each in kept], "unsteady": unsteady})
        return
    rows = [(each.kind, str(each.entries), format_bytes(each.bytes), each.directory) for each in kept]
    print_table("deleted" if action == "clear" else "cache", rows, header=("", "entries", "size", "folder"))
    if unsteady and action == "info":
        click.echo(
            f"The runs of {unsteady} timings differed much: they are taken again when they are needed."
        )

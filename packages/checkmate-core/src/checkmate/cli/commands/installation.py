"""``checkmate plugins``, ``checkmate doctor`` and ``checkmate cache``: what is installed and on disk."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import click

from checkmate.cli import options
from checkmate.cli.findings import clashes, distribution_versions, failure, findings
from checkmate.cli.output import print_json, print_table
from checkmate.cost.measured import profiles_directory, profiles_in
from checkmate.files.cache import default_directory
from checkmate.files.disk import delete_entries, entries
from checkmate.plugins import (
    COST_MODELS,
    EXECUTORS,
    EXPORTERS,
    FRONTENDS,
    SOLVERS,
    Registry,
    installed_plugins,
)
from checkmate.text.printable import excerpt
from checkmate.units import format_bytes

__all__ = ["cache", "doctor", "plugins"]

_REGISTRIES: Mapping[str, tuple[Registry[Any, Any], tuple[str, ...]]] = {
    "solvers": (SOLVERS, ("guarantee", "cite")),
    "cost_models": (COST_MODELS, ("cite",)),
    "frontends": (FRONTENDS, ()),
    "executors": (EXECUTORS, ("features",)),
    "exporters": (EXPORTERS, ("suffix",)),
}
"""Each kind, and the attributes that are listed of its specs."""


@click.command(epilog=options.examples("checkmate plugins", "checkmate plugins --json"))
@options.as_json
@click.pass_context
def plugins(ctx: click.Context, /, as_json: bool) -> None:
    """List the installed plugins, broken ones included, and everything that they offer.

    Exit code: 0, even if plugins are broken ('checkmate doctor' says 1 then).
    """
    app: Any = ctx.find_root().command
    owners = app.command_owners()
    if as_json:
        print_json(_facts(app, owners))
        return
    rows = [(p.name, p.distribution, failure(p) or "ok") for p in installed_plugins()]
    print_table("plugins", rows)
    for key, (registry, extra) in _REGISTRIES.items():
        columns = ("name", *(c for c in extra if c != "cite"), "summary")
        offers = [[_text(value) for value in _listed(spec, columns).values()] for spec in registry.specs()]
        print_table(key.replace("_", " "), offers)
    print_table("commands of plugins", [(name, owner) for name, owner in sorted(owners.items())])
    for clash in clashes():
        text = f"it is offered by {' and by '.join(clash.owners)}."
        click.echo(excerpt(f"{clash.kind.capitalize()} {clash.name!r} can't be used: {text}"))


def _facts(app: Any, owners: Mapping[str, str]) -> dict[str, object]:
    offered = {
        key: [_listed(spec, ("name", "summary", *extra)) for spec in registry.specs()]
        for key, (registry, extra) in _REGISTRIES.items()
    }
    return {
        "plugins": [
            {
                "name": plugin.name,
                "distribution": plugin.distribution,
                "error": failure(plugin),
                "offers": [spec.name for spec in plugin.offers],
                "commands": [name for name, owner in owners.items() if owner == plugin.owner],
            }
            for plugin in installed_plugins()
        ],
        **offered,
        "commands": [
            {"name": name, "summary": command.get_short_help_str(200), "plugin": owners.get(name)}
            for name, command in sorted(app.commands.items())
        ],
        "ambiguous": [clash._asdict() for clash in clashes()],
    }


def _listed(spec: object, fields: Iterable[str]) -> dict[str, object]:
    """Fields of a spec; sets as sorted lists."""
    values = {field: getattr(spec, field) for field in fields}
    return {name: sorted(v) if isinstance(v, frozenset) else v for name, v in values.items()}


def _text(value: object) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)


@click.command(epilog=options.examples("checkmate doctor", "checkmate doctor --json"))
@options.as_json
@click.pass_context
def doctor(ctx: click.Context, /, as_json: bool) -> None:
    """Check the installation: versions, plugins, loading of libraries and solvers.

    Exit codes: 0 no problem; 1 there is a problem, with advice.
    """
    ctx.find_root().command.command_owners()  # type: ignore[attr-defined]  # loads the plugins' commands
    found = findings()
    problems = [finding for finding in found if finding.level == "problem"]
    if as_json:
        print_json(
            {
                "ok": not problems,
                "python": platform.python_version(),
                "platform": platform.platform(),
                "versions": distribution_versions(),
                "findings": [finding._asdict() for finding in found],
            }
        )
    else:
        rows = [(f.level, f.subject, (f.text, f.advice) if f.advice else f.text) for f in found]
        print_table("checkmate doctor", rows)
        click.echo(f"{len(problems) or 'No'} problem{'s' * (len(problems) != 1)} found.")
    if problems:
        ctx.exit(1)


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

"""``checkmate doctor``: the faults of an installation, and what to do about them."""

from __future__ import annotations

import dataclasses
import platform

import click

from checkmate.cli import options
from checkmate.cli.findings import Finding, distribution_versions, findings, loading_findings
from checkmate.cli.plugins import clashes, command_owners, failure
from checkmate.cli.printing import print_json, print_table
from checkmate.plugins import installed_plugins

__all__ = ["doctor"]


@click.command(epilog=options.examples("checkmate doctor", "checkmate doctor --json"))
@options.as_json
@click.pass_context
def doctor(ctx: click.Context, /, as_json: bool) -> None:
    """Check the installation: versions, plugins, loading of libraries and solvers, the cache.

    Exit codes: 0 no problem; 1 there is a problem, with advice.
    """
    command_owners(ctx)  # loads the commands of plugins, which may fail, too
    found = [*findings(), *_plugins(), *loading_findings()]
    problems = [finding for finding in found if finding.level == "problem"]
    if as_json:
        print_json(
            {
                "ok": not problems,
                "python": platform.python_version(),
                "platform": platform.platform(),
                "versions": distribution_versions(),
                "findings": [dataclasses.asdict(finding) for finding in found],
            }
        )
    else:
        rows = [(f.level, f.subject, (f.text, f.advice) if f.advice else f.text) for f in found]
        print_table("checkmate doctor", rows)
        click.echo(f"{len(problems) or 'No'} problem{'s' * (len(problems) != 1)} found.")
    if problems:
        ctx.exit(1)


def _plugins() -> list[Finding]:
    """The plugins, with their errors, and names that several of them offer."""
    found = []
    for plugin in installed_plugins():
        error = failure(plugin)
        if error is None:
            found.append(Finding(level="ok", subject=f"plugin {plugin.name!r}", text=plugin.distribution))
            continue
        found.append(
            Finding(
                level="problem",
                subject=f"plugin {plugin.name!r}",
                text=f"{plugin.distribution}: {error}",
                advice="upgrade or uninstall it, or leave it out of CHECKMATE_PLUGINS",
            )
        )
    found += (
        Finding(
            level="problem",
            subject=f"{clash.kind} {clash.name!r}",
            text=f"offered by {' and by '.join(clash.owners)}: it is disabled",
            advice="uninstall all but one, or list the plugins to load in CHECKMATE_PLUGINS",
        )
        for clash in clashes()
    )
    return found

"""``checkmate doctor``: the faults of an installation, and what to do about them."""

from __future__ import annotations

import dataclasses
import platform

import click

from checkmate.cli import options
from checkmate.cli.findings import distribution_versions, every_finding
from checkmate.cli.plugins import command_owners
from checkmate.cli.printing import print_json, print_table

__all__ = ["doctor"]


@click.command(epilog=options.examples("checkmate doctor", "checkmate doctor --json"))
@options.as_json
@click.pass_context
def doctor(ctx: click.Context, /, as_json: bool) -> None:
    """Check the installation: versions, plugins, loading of libraries and solvers, the cache.

    Exit codes: 0 no problem; 1 there is a problem, with advice.
    """
    command_owners(ctx)  # loads the commands of plugins, which may fail, too
    found = every_finding()
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

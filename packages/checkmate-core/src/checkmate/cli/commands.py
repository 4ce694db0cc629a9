"""The built-in commands ``solve``, ``simulate`` and ``plugins``: a table, or JSON with ``--json``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table

from checkmate import api
from checkmate.errors import InvalidScheduleError
from checkmate.plugins import ambiguous_solvers, installed_plugins, solver_specs
from checkmate.serialize import read_graph, read_schedule, write_schedule
from checkmate.simulate import simulate as judge
from checkmate.solution import Solution
from checkmate.units import format_bytes

__all__ = ["plugins", "simulate", "solve"]

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _a_number(_context: click.Context, _option: click.Parameter, value: float) -> float:
    if math.isnan(value):  # no range excludes it
        raise click.BadParameter("nan is not a number of seconds.")
    return value


_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


@click.command()
@click.argument("graph", type=_FILE)
@click.option("--budget", required=True, help="8GiB, 123456 (bytes), or 80% of the keep-everything peak.")
@click.option("--solver", default="auto", show_default=True, help="See 'checkmate plugins'.")
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    callback=_a_number,
    help="Seconds.",
)
@click.option("--fixed-order", is_flag=True, help="Keep the order in which the ops first run.")
@click.option("--seed", type=int, default=0, show_default=True, help="For every random choice.")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the schedule.")
@_as_json
def solve(
    graph: Path,
    budget: str,
    solver: str,
    time_limit: float,
    fixed_order: bool,
    seed: int,
    threads: int,
    output: Path | None,
    as_json: bool,
) -> None:
    """Find the cheapest schedule of GRAPH (a JSON file) whose peak is within the budget."""
    if output is not None and output.exists() and output.samefile(graph):
        raise click.BadParameter(f"{output} is the graph itself.", param_hint="'-o'")
    whole = read_graph(graph)
    with Console(stderr=True).status("solving …"):
        solution = api.solve(
            whole,
            budget,
            solver=solver,
            time_limit=time_limit,
            fixed_order=fixed_order,
            threads=threads,
            seed=seed,
            throw=False,
        )
    facts = _facts(solution)
    if as_json:
        _print_json(facts)
    if solution.schedule is None:
        raise api.infeasible_error(solution)
    if output is not None:
        kept = ("solver", "budget", "peak", "cost", "bound", "status")
        write_schedule(output, solution.schedule, whole, {key: facts[key] for key in kept})
    if not as_json:
        _print_solution(solution)


@click.command()
@click.argument("graph", type=_FILE)
@click.argument("schedule", type=_FILE)
@_as_json
@click.pass_context
def simulate(ctx: click.Context, /, graph: Path, schedule: Path, as_json: bool) -> None:
    """Judge SCHEDULE on GRAPH (JSON files): is it valid, what does it cost, what is its peak?

    Exit 1 if it is not valid.
    """
    whole = read_graph(graph)
    steps = read_schedule(schedule, whole)
    facts: dict[str, object] = {"valid": True, "reason": None, "peak": None, "cost": None, "overhead": None}
    facts["steps"] = len(steps)
    try:
        timeline = judge(whole, steps)
    except InvalidScheduleError as error:
        facts |= {"valid": False, "reason": error.reason.name, "step": error.step, "subject": error.subject}
        if as_json:
            _print_json(facts)
        click.echo(f"Not valid: {error}", err=True)
        ctx.exit(1)
    facts |= {"peak": timeline.peak, "cost": timeline.cost, "overhead": timeline.overhead}
    if as_json:
        _print_json(facts)
    else:
        _print_table(
            "valid",
            [
                (
                    "peak",
                    f"{format_bytes(timeline.peak)} ({timeline.peak} bytes), at step {timeline.peak_step}",
                ),
                ("cost", f"{timeline.cost:.6g} {whole.cost_unit}"),
                ("overhead", f"{timeline.overhead:.2%}, {timeline.recomputes} recomputations"),
                ("steps", str(len(steps))),
            ],
        )


@click.command()
@_as_json
def plugins(as_json: bool) -> None:
    """List what is installed: plugins, broken ones too, and their solvers."""
    loaded, specs, ambiguous = installed_plugins(), solver_specs(), ambiguous_solvers()
    if as_json:
        _print_json(
            {
                "plugins": [
                    {
                        "name": plugin.name,
                        "distribution": plugin.distribution,
                        "error": plugin.error,
                        "offers": [spec.name for spec in plugin.offers],
                    }
                    for plugin in loaded
                ],
                "solvers": [
                    {"name": s.name, "summary": s.summary, "guarantee": s.guarantee, "cite": s.cite}
                    for s in specs
                ],
                "ambiguous": ambiguous,
            }
        )
        return
    _print_table("plugins", [(plugin.name, plugin.distribution, plugin.error or "ok") for plugin in loaded])
    _print_table("solvers", [(spec.name, spec.guarantee, spec.summary) for spec in specs])
    for name, owners in ambiguous.items():
        click.echo(f"Solver {name!r} can't be used: it is offered by {' and by '.join(owners)}.")


def _facts(solution: Solution) -> dict[str, object]:
    """The result as plain values; infinite numbers become null in JSON."""
    return {
        "status": solution.status.value,
        "cost": solution.cost,
        "ideal_cost": solution.problem.graph.ideal_cost,
        "overhead": solution.overhead,
        "peak": solution.peak,
        "budget": solution.problem.budget,
        "bound": solution.bound,
        "gap": solution.gap,
        "solver": solution.solver,
        "seconds": solution.seconds,
    }


def _print_solution(solution: Solution) -> None:
    unit, budget = solution.problem.graph.cost_unit, solution.problem.budget
    peak = solution.peak or 0
    _print_table(
        str(solution.problem.graph.name or "graph"),
        [
            ("status", f"{solution.status} ({solution.solver}, {solution.seconds:.2f} s)"),
            ("peak", f"{format_bytes(peak)} of {format_bytes(budget)} ({peak / budget:.1%})"),
            ("cost", f"{solution.cost:.6g} {unit}"),
            ("overhead", f"{solution.overhead:.2%} over computing everything once"),
            ("gap", f"{solution.gap:.2%}: no schedule costs less than {solution.bound:.6g} {unit}"),
        ],
    )
    click.echo(solution.explain())


def _print_json(facts: Mapping[str, object]) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(facts), indent=2).decode())


def _print_table(title: str, rows: Sequence[Sequence[str]]) -> None:
    table = Table(title=title, title_justify="left", show_header=False)
    for row in rows:
        table.add_row(*row)
    Console(markup=False, highlight=False).print(table)

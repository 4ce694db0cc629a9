"""``checkmate solve``: a graph and a budget in, a judged schedule out."""

from __future__ import annotations

from pathlib import Path

import click

from checkmate.cli import options
from checkmate.cli.options import budget_of
from checkmate.cli.output import foreign_code, print_json, print_table
from checkmate.cli.progress import watching
from checkmate.cli.signals import held_back, interruptible
from checkmate.files.serialize import read_graph, write_schedule
from checkmate.problem.solution import Solution
from checkmate.solving import api
from checkmate.text.printable import printable
from checkmate.units import format_bytes

__all__ = ["solution_facts", "solve"]

_KEPT = ("solver", "budget", "peak", "cost", "bound", "status")  # written to the schedule's file, as hints


@click.command(
    epilog=options.examples(
        "checkmate solve graph.json --budget 60%",
        "checkmate solve graph.json --budget 8GiB -o schedule.json --json",
        "checkmate solve graph.json --budget 60% --solver heuristics --fixed-order",
    )
)
@options.graph_file
@click.option(
    "--budget", required=True, help="8GiB, 123456 (bytes), or a share of the peak without recomputation: 60%."
)
@click.option("--solver", default="auto", show_default=True, help="'checkmate plugins' lists them.")
@options.solving
@options.output("Write the schedule: FILE.json or FILE.msgpack.")
@options.max_size
@options.as_json
def solve(
    graph: options.Input,
    budget: str,
    solver: str,
    time_limit: float,
    fixed_order: bool,
    seed: int,
    threads: int,
    cache: bool,
    output: Path | None,
    max_size: int,
    as_json: bool,
) -> None:
    """Find the cheapest schedule of GRAPH (a file, or -) whose peak is within the budget.

    Ctrl-C and SIGTERM end the search: solvers that improve step by step, such as 'auto', then return their
    best schedule.

    Exit codes: 0 a schedule was found; 1 the budget is infeasible, or none was found; 2 bad input; 143
    SIGTERM.
    """
    options.not_the_graph(output, graph)
    whole = read_graph(graph, max_size=max_size)
    with held_back():
        with foreign_code(), watching(whole.cost_unit) as tell, interruptible():
            solution = api.solve(
                whole,
                budget_of(budget),
                solver=solver,
                time_limit=time_limit,
                fixed_order=fixed_order,
                threads=threads,
                seed=seed,
                on_progress=tell,
                cache=cache,
                throw=False,
            )
        facts = solution_facts(solution)
        if output is not None and solution.schedule is not None:
            write_schedule(output, solution.schedule, whole, {key: facts[key] for key in _KEPT})
    if solution.interrupted:
        click.echo("Interrupted: this is the best schedule until then.", err=True)
    if as_json:
        print_json(facts)
    if solution.schedule is None:
        raise api.infeasible_error(solution)
    if not as_json:
        _print_solution(solution)


def solution_facts(solution: Solution) -> dict[str, object]:
    """A solution as plain values; infinite numbers become null in JSON."""
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
    print_table(
        solution.problem.graph.name or "graph",
        [
            ("status", f"{solution.status} ({solution.solver}, {solution.seconds:.2f} s)"),
            ("peak", f"{format_bytes(peak)} of {format_bytes(budget)} ({peak / budget:.1%})"),
            ("cost", f"{solution.cost:.6g} {unit}"),
            ("overhead", f"{solution.overhead:.2%} over computing everything once"),
            ("gap", f"{solution.gap:.2%}: no schedule costs less than {solution.bound:.6g} {unit}"),
        ],
    )
    for line in solution.explain().splitlines():
        click.echo(printable(line))

"""``checkmate sweep``: many budgets, perhaps with several solvers, and the frontier of the answers."""

from __future__ import annotations

from importlib import util
from pathlib import Path
from typing import Any

import click

from checkmate.cli import options
from checkmate.cli.commands.solve import solution_facts
from checkmate.cli.commands.workers import workers
from checkmate.cli.exits import Failed, Interrupted
from checkmate.cli.options import budget_list
from checkmate.cli.output import exported, foreign_code, json_bytes, print_json, print_lines, print_table, say
from checkmate.cli.progress import counting
from checkmate.cli.signals import held_back, interruptible
from checkmate.errors import MissingDistributionError, install_hint
from checkmate.files.disk import replace_file
from checkmate.files.serialize import read_graph
from checkmate.problem.problem import keep_all_peak
from checkmate.problem.solution import Solution, Status
from checkmate.solving.sweep import Failure, Frontier, SweepInterrupted
from checkmate.solving.sweep import sweep as ask_all
from checkmate.text.printable import clipped
from checkmate.units import format_bytes

__all__ = ["sweep"]

_PICTURES = (".png", ".svg", ".pdf")


def _picture(_context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """Refuse, before the work, a picture that could not be drawn."""
    if path is None:
        return None
    if path.suffix.lower() not in _PICTURES:
        raise click.BadParameter(f"{path}: must end with {', '.join(_PICTURES)}.", param=option)
    if util.find_spec("matplotlib") is None:
        raise MissingDistributionError(f"pictures need matplotlib: {install_hint('checkmate-core[plot]')}")
    return options.new_file(_context, option, path)


@click.command(
    epilog=options.examples(
        "checkmate sweep graph.json --budgets 0.3:1.0:15",
        "checkmate sweep graph.json --budgets 4GiB,60%,0.5 --solver auto --solver heuristics",
        "checkmate sweep graph.json --budgets 0.3:1.0:15 --jobs 4 -o frontier.json --plot frontier.svg",
    )
)
@options.graph_file
@click.option("--budgets", required=True, help="start:stop:count of shares, or a list as 4GiB,60%,0.5.")
@click.option(
    "--solver",
    "solvers",
    multiple=True,
    default=("auto",),
    show_default=True,
    help="'checkmate plugins' lists them; may be given several times.",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of solves at a time, each in a process.",
)
@options.solving
@options.output("Write the frontier as JSON.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=_picture,
    help=f"Draw the frontier: a file that ends with {', '.join(_PICTURES)}.",
)
@options.max_size
@options.as_json
def sweep(
    graph: options.Input,
    budgets: str,
    solvers: tuple[str, ...],
    jobs: int,
    output: Path | None,
    plot: Path | None,
    max_size: int,
    as_json: bool,
    cache: bool,
    **settings: Any,
) -> None:
    """Solve GRAPH (a file, or -) for many budgets: the least overhead at each peak.

    Ctrl-C and SIGTERM end it early: the answers until then are written and printed.

    Exit codes: 0 some budget was met; 1 none was; 2 bad input; 130 Ctrl-C; 143 SIGTERM.
    """
    options.distinct_files(output=output, plot=plot)
    for file in (output, plot):
        options.not_the_graph(file, graph)
    whole, asked = read_graph(graph, max_size=max_size), budget_list(budgets)
    early: SweepInterrupted | None = None
    with held_back():
        try:
            with foreign_code(), workers(jobs) as executor, counting("solving") as tell, interruptible():
                frontier = ask_all(
                    whole,
                    asked,
                    solvers,
                    executor=executor,
                    cache=cache,
                    on_progress=lambda done, of, answer: tell(done, of, _latest(answer)),
                    **settings,
                )
        except SweepInterrupted as error:
            early, frontier = error, error.frontier
            if not (frontier.answers or frontier.errors):
                raise Interrupted(f"Interrupted {early}: nothing was written.") from error
        facts = frontier_facts(frontier)
        if output is not None:
            replace_file(output, json_bytes(facts))
        if plot is not None:
            with exported(plot, "drawing the frontier") as file:
                from checkmate.report.plot import plot_frontier

                plot_frontier(frontier, file)
    if as_json:
        print_json(facts)
    else:
        _print_frontier(frontier)
    for failure in frontier.errors:
        about = f"solver {failure.solver!r} at {format_bytes(failure.budget)}"
        say(f"Warning: {about}: {failure.error}")
    if early is not None:
        raise Interrupted(f"Interrupted {early}: the frontier has only these.")
    if not frontier.points:
        raise Failed(
            "no schedule was found for any of these budgets: 'checkmate show' names a budget that is enough"
        )


def _latest(answer: Solution | Failure) -> str:
    budget = answer.budget if isinstance(answer, Failure) else answer.problem.budget
    outcome = "failed" if isinstance(answer, Failure) else str(answer.status)
    return f"{answer.solver} at {format_bytes(budget)}: {outcome}"


def frontier_facts(frontier: Frontier) -> dict[str, object]:
    """A frontier as plain values; ``points`` and ``answers`` have the keys of ``checkmate solve --json``."""
    graph = frontier.graph
    return {
        "graph": {"name": graph.name, "digest": graph.digest, "cost_unit": graph.cost_unit},
        "keep_all_peak": keep_all_peak(graph),
        "summary": frontier.summary,
        "points": [solution_facts(point) for point in frontier.points],
        "answers": [solution_facts(answer) for answer in frontier.answers],
        "errors": [
            {"solver": failure.solver, "budget": failure.budget, "error": str(failure.error)}
            for failure in frontier.errors
        ],
    }


def _print_frontier(frontier: Frontier) -> None:
    """The best answer for each budget, the largest budget first."""
    asked = {a.problem.budget for a in frontier.answers} | {failure.budget for failure in frontier.errors}
    whole = keep_all_peak(frontier.graph)
    rows = []
    for budget in sorted(asked, reverse=True):
        best = frontier.at(budget)
        share = f"{budget / whole:.1%}" if whole else ""
        if best is None or best.peak is None:
            proved = any(
                a.status is Status.INFEASIBLE and a.problem.budget >= budget for a in frontier.answers
            )
            rows.append(
                (format_bytes(budget), share, "-", "-", "-", "infeasible" if proved else "none found")
            )
            continue
        numbers = (format_bytes(best.peak), f"{best.overhead:.2%}", f"{best.gap:.2%}")
        rows.append((format_bytes(budget), share, *numbers, best.solver))
    header = ("budget", "share", "peak", "overhead", "gap", "by")
    print_table(clipped(frontier.graph.name) or "graph", rows, header=header)
    if frontier.points:
        print_lines([[(frontier.summary, "")]])

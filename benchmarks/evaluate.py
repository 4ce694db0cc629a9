"""The evaluation: run experiments, resume them, draw them, and put the results into the documentation.

    python benchmarks/evaluate.py --list
    python benchmarks/evaluate.py --quick                            # a reduced version of every experiment
    python benchmarks/evaluate.py overhead -o benchmarks/results     # one experiment, as it is committed
    python benchmarks/evaluate.py solvers --graphs DIR --budgets 0.8 0.5 --solvers auto checkmate-milp
    python benchmarks/evaluate.py --executor dask:tcp://HOST:8786    # on a cluster
    python benchmarks/evaluate.py --pages                            # update the tables of docs and README

Each experiment writes ``NAME.json`` and ``NAME.png`` into the output folder; an experiment that presents the
rows of another writes a picture at most. Ctrl-C loses at most the running tasks; the same command resumes,
and repeats tasks that ended in an error.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from evaluation import EXPERIMENTS, batches_picture, executed_batches, picture, solvers, tables
from evaluation.executors import executor_of
from evaluation.experiment import Experiment
from evaluation.results import Results, Row, read_results
from evaluation.runner import run
from machine import session
from pages import conditions, filled, quoted

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def main(arguments: Sequence[str], experiments: Mapping[str, Experiment] = EXPERIMENTS) -> int:
    """Run the command line, on all experiments or on some of them; returns the exit code."""
    asked = _parser().parse_args(arguments)
    if unknown := set(asked.experiments) - set(experiments):
        print(
            f"no experiment {', '.join(sorted(unknown))}: there are {', '.join(experiments)}", file=sys.stderr
        )
        return 2
    experiments = _on_files(asked) if asked.graphs else experiments
    names = [
        name
        for name in asked.experiments or experiments
        if asked.needing is None or asked.needing in experiments[name].needs
    ]
    if asked.list:
        print("".join(f"{name:<22}{experiments[name].about}\n" for name in names), end="")
        return 0
    if asked.pages:
        _fill_pages(asked.output or RESULTS)
        return 0
    return _evaluate_all([experiments[name] for name in names], asked, arguments)


def _evaluate_all(
    experiments: Sequence[Experiment], asked: argparse.Namespace, arguments: Sequence[str]
) -> int:
    """Run experiments one after another; returns the exit code."""
    folder = asked.output or Path("evaluation-quick" if asked.quick else "evaluation")
    folder.mkdir(parents=True, exist_ok=True)
    console, failed = Console(stderr=True), 0
    try:
        for experiment in experiments:
            facts = session(
                f"benchmarks/{Path(sys.argv[0]).name}", arguments, experiment.seeds, experiment.packages
            )
            failed += _evaluate(experiment, asked, folder, facts, console)
    except KeyboardInterrupt:
        console.print("[yellow]interrupted: the same command resumes[/]")
        return 130
    if failed:
        console.print(
            f"[red]{failed} tasks ended in an error, see their rows; the same command repeats them[/]"
        )
    return 1 if failed else 0


def _on_files(asked: argparse.Namespace) -> Mapping[str, Experiment]:
    """Only the experiment *solvers*, on the graph files of a folder.

    Raises:
        SystemExit: if another experiment is asked for, or the folder has no graphs.
    """
    tasks = solvers.tasks_of(
        asked.graphs, asked.budgets, asked.solvers, asked.time_limit, fixed_order=asked.fixed_order
    )
    if asked.experiments != ["solvers"] or not tasks:
        raise SystemExit("--graphs needs the experiment solvers, and a folder with *.json graph files")
    return {"solvers": replace(solvers.EXPERIMENT, tasks=lambda _quick: tasks)}


def _evaluate(
    experiment: Experiment,
    asked: argparse.Namespace,
    folder: Path,
    facts: dict[str, Any],
    console: Console,
) -> int:
    """Run one experiment and write its files; returns the number of failed tasks."""
    missing = [module for module in experiment.needs if importlib.util.find_spec(module) is None]
    if missing:
        console.print(f"[yellow]{experiment.name}: skipped, needs {', '.join(missing)}[/]")
        return 0
    source = experiment.source
    tasks, file = source.tasks(asked.quick), folder / f"{source.name}.json"
    where = "here" if experiment.alone else asked.executor
    with executor_of(where, asked.jobs) as executor, Progress(console=console) as progress:
        bar = progress.add_task(experiment.name, total=len(tasks))

        def on_row(row: Row) -> None:
            progress.advance(bar)
            if row.error:
                said = ", ".join(f"{k}={v}" for k, v in row.task.items())
                progress.console.print(f"{experiment.name}: {said}: {row.error}", style="red", markup=False)

        results = run(source, tasks, file, executor=executor, session=facts, quick=asked.quick, on_row=on_row)
    _show(experiment, results, folder)
    return sum(bool(row.error) for row in results.rows)


def _show(experiment: Experiment, results: Results, folder: Path) -> None:
    """Print the table, write the picture."""
    said = "\n\n".join((experiment.title, experiment.markdown(results), conditions(results.sessions)))
    print(f"\n{said}\n", flush=True)
    figure = experiment.draw(results)
    if figure is not None:
        figure.savefig(folder / f"{experiment.name}.png", dpi=90)


def _fill_pages(folder: Path) -> None:
    """Replace the tables of README and docs, and redraw the pictures of the README."""
    images = ROOT / "docs" / "images"
    picture.save(read_results(folder / "overhead.json"), images / "results.svg")
    executed = [read_results(folder / f"{one.name}.json") for one in executed_batches.EXPERIMENTS]
    batches_picture.save(*executed, images / "batches.svg")
    made = tables(folder)
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = page.read_text(encoding="utf-8")
        if quoted(text):
            page.write_text(filled(text, made), encoding="utf-8")
            print(f"{page.relative_to(ROOT)}: {', '.join(quoted(text))}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    say = parser.add_argument
    say("experiments", nargs="*", metavar="EXPERIMENT", help=f"{', '.join(EXPERIMENTS)}; default: all")
    say("--quick", action="store_true", help="a reduced version of each")
    say("--executor", default="processes", help="here, processes (default), dask[:ADDRESS], ray[:ADDRESS]")
    say("--jobs", type=int, default=os.cpu_count() or 1, help="tasks at once; default: one for each core")
    say("-o", "--output", type=Path, help="folder; default: evaluation/, with --quick evaluation-quick/")
    say("--list", action="store_true", help="list the experiments")
    say("--needing", metavar="MODULE", help="only experiments that need this module")
    say("--pages", action="store_true", help="update docs and README from the results in the output folder")
    files = parser.add_argument_group("experiment solvers, on graph files")
    files.add_argument("--graphs", type=Path, metavar="DIR", help="folder of graph files, NAME.json")
    files.add_argument("--budgets", type=float, nargs="+", default=[0.8, 0.5, 0.3], help="shares of the peak")
    files.add_argument("--solvers", nargs="+", default=solvers.SOLVERS, help="names, or module:Class")
    files.add_argument("--time-limit", type=float, default=10.0, help="seconds for each solve")
    files.add_argument("--fixed-order", action="store_true", help="first runs of ops keep the graph's order")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The evaluation, experiment by experiment: asked, resumed, drawn, put into the documentation.

    python benchmarks/evaluate.py --list
    python benchmarks/evaluate.py --quick                            # a reduced version of everything
    python benchmarks/evaluate.py overhead -o benchmarks/results     # one experiment, as it is committed
    python benchmarks/evaluate.py --executor dask:tcp://HOST:8786    # on a cluster
    python benchmarks/evaluate.py --pages                            # docs and README say what the files say

Each experiment leaves ``NAME.json`` and ``NAME.png`` in the output folder; some show another's rows in
another light, and leave a picture at most. Ctrl-C loses at most the tasks that run; the same command goes on
where it stopped, and asks again what ended in an error.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from evaluation import EXPERIMENTS, picture, tables
from evaluation.executors import executor_of
from evaluation.experiment import Experiment
from evaluation.results import Results, Row, read_results
from evaluation.runner import run
from machine import session
from pages import conditions, filled, quoted

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def main(arguments: Sequence[str]) -> int:
    """Run what the command line asks for; returns the exit code."""
    asked = _parser().parse_args(arguments)
    if unknown := set(asked.experiments) - set(EXPERIMENTS):
        print(
            f"no experiment {', '.join(sorted(unknown))}: there are {', '.join(EXPERIMENTS)}", file=sys.stderr
        )
        return 2
    names = [
        name
        for name in asked.experiments or EXPERIMENTS
        if asked.needing is None or asked.needing in EXPERIMENTS[name].needs
    ]
    if asked.list:
        print("".join(f"{name:<22}{EXPERIMENTS[name].about}\n" for name in names), end="")
        return 0
    if asked.pages:
        _fill_pages(asked.output or RESULTS)
        return 0
    folder = asked.output or Path("evaluation-quick" if asked.quick else "evaluation")
    folder.mkdir(parents=True, exist_ok=True)
    console, failed = Console(stderr=True), 0
    try:
        for name in names:
            experiment = EXPERIMENTS[name]
            facts = session("benchmarks/evaluate.py", arguments, experiment.seeds, experiment.packages)
            failed += _evaluate(experiment, asked, folder, facts, console)
    except KeyboardInterrupt:
        console.print("[yellow]interrupted: the same command goes on from here[/]")
        return 130
    if failed:
        console.print(
            f"[red]{failed} tasks ended in an error: their rows say which; the same command asks again[/]"
        )
    return 1 if failed else 0


def _evaluate(
    experiment: Experiment,
    asked: argparse.Namespace,
    folder: Path,
    facts: dict[str, Any],
    console: Console,
) -> int:
    """One experiment with its files; how many tasks failed."""
    missing = [module for module in experiment.needs if importlib.util.find_spec(module) is None]
    if missing:
        console.print(f"[yellow]{experiment.name}: left out, needs {', '.join(missing)}[/]")
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
    """The table on the terminal, the picture in the folder."""
    said = "\n\n".join((experiment.title, experiment.markdown(results), conditions(results.sessions)))
    print(f"\n{said}\n", flush=True)
    figure = experiment.draw(results)
    if figure is not None:
        figure.savefig(folder / f"{experiment.name}.png", dpi=90)


def _fill_pages(folder: Path) -> None:
    """Replace the tables of README and docs, and redraw the picture of the README."""
    picture.save(read_results(folder / "overhead.json"), ROOT / "docs" / "images" / "results.svg")
    made = tables(folder)
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = page.read_text(encoding="utf-8")
        if quoted(text):
            page.write_text(filled(text, made), encoding="utf-8")
            print(f"{page.relative_to(ROOT)}: {', '.join(quoted(text))}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    say = parser.add_argument
    say("experiments", nargs="*", metavar="EXPERIMENT", help=f"of {', '.join(EXPERIMENTS)}; default: all")
    say("--quick", action="store_true", help="a reduced version of each")
    say("--executor", default="processes", help="here, processes (default), dask[:ADDRESS], ray[:ADDRESS]")
    say("--jobs", type=int, default=os.cpu_count() or 1, help="how many tasks at once; default: one a core")
    say("-o", "--output", type=Path, help="folder; default: evaluation/, with --quick evaluation-quick/")
    say("--list", action="store_true", help="say what there is")
    say("--needing", metavar="MODULE", help="only experiments that can't do without this module")
    say("--pages", action="store_true", help="put results into docs and README; -o: the folder to read")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

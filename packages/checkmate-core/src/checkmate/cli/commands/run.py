"""``checkmate run``: run training steps by a schedule, and compare their memory with the simulator's."""

from __future__ import annotations

from collections.abc import Sequence

import click

from checkmate import simulate as judge
from checkmate.cli import options
from checkmate.cli.commands.programs import Program, ProgramCommand, cost_model, graph_of, tracing_options
from checkmate.cli.exits import BadInput, Failed
from checkmate.cli.output import foreign_code, print_json, print_table, say
from checkmate.cli.progress import counting
from checkmate.cli.progress import steps as watching
from checkmate.errors import FormatError
from checkmate.files.serialize import read_graph, read_schedule
from checkmate.framework import differences
from checkmate.model.graph import DFGraph
from checkmate.model.schedule import Schedule
from checkmate.plugins import (
    EXECUTORS,
    FRONTENDS,
    Executor,
    ExecutorSpec,
    ProgramExecutor,
    RunnableProgram,
    StepReport,
)
from checkmate.units import format_bytes

__all__ = ["run"]


def _executors() -> list[ExecutorSpec]:
    """The executors whose programs a frontend traces."""
    frontends = {spec.name for spec in FRONTENDS.specs()}
    return [spec for spec in EXECUTORS.specs() if spec.name in frontends]


@click.command(
    cls=ProgramCommand,
    offered=_executors,
    kind="executor",
    epilog=options.examples(
        "checkmate run --torch train:step schedule.json --graph graph.json",
        "checkmate run --torch train:step schedule.json --graph graph.json --steps 10 --json",
    ),
)
@click.argument("schedule", type=options.FILE)
@click.option(
    "--graph",
    type=options.FILE,
    help="The graph that SCHEDULE was made for; default: the traced one, costs included.",
)
@click.option(
    "--steps", type=click.IntRange(min=1), default=3, show_default=True, help="Training steps to run."
)
@cost_model
@options.max_size
@options.as_json
def run(
    program: Program,
    schedule: options.Input,
    graph: options.Input | None,
    steps: int,
    cost_model: str | None,
    max_size: int,
    as_json: bool,
) -> None:
    """Run training steps by SCHEDULE (a file, or -), and compare their memory with the simulator's.

    MODULE:FACTORY names a function as for 'checkmate trace'. A schedule belongs to a graph with its costs,
    and costs differ from one measurement to the next: name that graph with --graph.

    Exit codes: 0 ok; 1 the schedule is not valid, or a step held more than the simulator says; 2 bad input,
    such as a schedule of another program.
    """
    known = None if graph is None else read_graph(graph, max_size=max_size)
    order = None if known is None else read_schedule(schedule, known, max_size=max_size)
    name = program.framework
    with foreign_code(), watching("tracing") as tell:
        frontend, executor = FRONTENDS.load(name), EXECUTORS.load(name)
        if not isinstance(executor, ProgramExecutor):
            raise BadInput(f"the executor {name!r} can't run programs by name: it has no prepare()")
        runnable = executor.prepare(program.load(), **tracing_options(frontend, cost_model, tell))
        here = graph_of(runnable.traced, f"executor {name!r}")
    if order is None or known is None:
        order = _of_traced(schedule, here, max_size)
    elif different := differences(here, known):
        raise BadInput(f"this schedule is of another program; the one traced now: {different}")
    peak = _simulated_peak(here, order, known)
    if "reorders" not in EXECUTORS.spec(name).features and not order.keeps_base_order:
        raise BadInput(f"the executor {name!r} can't run ops in another order: solve with --fixed-order")
    with foreign_code():
        reports = _run(name, executor, runnable, order, steps)
    beyond = max((r.peak - peak - r.over for r in reports if r.peak is not None), default=None)
    if as_json:
        print_json({"executor": name, **_facts(reports, peak, beyond)})
    else:
        _print(reports, peak, beyond)
    if beyond is not None and beyond > 0:
        raise Failed(f"a step held {beyond} bytes more than the simulator's peak of {peak} bytes")


def _of_traced(schedule: options.Input, here: DFGraph, max_size: int) -> Schedule:
    """Read a schedule; refuse it unless its graph is the graph as traced now, costs included."""
    try:
        return read_schedule(schedule, here, max_size=max_size)
    except FormatError as error:
        if "of another graph" not in str(error):
            raise
        raise BadInput(
            f"{error}. Costs count in digests, and differ from one measurement to the next: name the graph "
            "that the schedule was made for with --graph"
        ) from error


def _simulated_peak(here: DFGraph, order: Schedule, known: DFGraph | None) -> int:
    """The peak of a schedule in bytes; a warning if it is higher than on the graph that it was made for."""
    peak = judge(here, order).peak
    if known is not None and (promised := judge(known, order).peak) < peak:
        say(
            f"Warning: on the graph of --graph the schedule's peak is {promised} bytes, on the one traced "
            f"now it is {peak} bytes: workspaces or fixed bytes differ"
        )
    return peak


def _run(
    name: str, executor: Executor, runnable: RunnableProgram, schedule: Schedule, steps: int
) -> list[StepReport]:
    """Bind the program, and run some steps."""
    reports = []
    with counting("running") as tell:
        bound = executor.bind(runnable.traced, schedule)
        for k in range(steps):
            report: object = runnable.step(bound)
            if not isinstance(report, StepReport):
                raise BadInput(f"the executor {name!r} gave a {type(report).__name__}, not a StepReport")
            reports.append(report)
            tell(k + 1, steps, f"loss {_loss(report)}")
    return reports


def _facts(reports: Sequence[StepReport], peak: int, beyond: int | None) -> dict[str, object]:
    """The steps and the verdict as plain values; the verdict is None if no memory was measured."""
    rows = [{"loss": r.loss, "peak": r.peak, "seconds": r.seconds, "over": r.over} for r in reports]
    return {"simulated_peak": peak, "within": None if beyond is None else beyond <= 0, "steps": rows}


def _print(reports: Sequence[StepReport], peak: int, beyond: int | None) -> None:
    """The steps as a table for people, and the verdict."""
    rows = [
        (str(k + 1), _loss(r), _bytes(r.peak), _bytes(peak), f"{r.seconds:.3g}")
        for k, r in enumerate(reports)
    ]
    same = len(reports) > 1 and len({r.loss for r in reports}) == 1
    title = f"the same step, {len(reports)} times: nothing is updated" if same else "steps"
    print_table(title, rows, header=("step", "loss", "measured peak", "simulator's peak", "seconds"))
    if beyond is None:
        click.echo("The executor measured no memory here.")
    elif beyond <= 0:
        measured, over = (max(getattr(r, what) or 0 for r in reports) for what in ("peak", "over"))
        share = f" ({measured / peak:.1%})" if peak else ""
        besides = f"; up to {over} bytes of small tensors are not in the graph" if over else ""
        click.echo(f"Within the simulator's peak: at most {measured} of {peak} bytes{share}{besides}.")


def _loss(report: StepReport) -> str:
    return "-" if report.loss is None else f"{report.loss:.6g}"


def _bytes(size: int | None) -> str:
    return "-" if size is None else format_bytes(size)

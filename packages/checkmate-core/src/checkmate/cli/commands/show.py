"""``checkmate show`` prints or draws a graph and its schedule; ``checkmate simulate`` judges the schedule."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np

from checkmate import simulate as judge
from checkmate.analysis import floor
from checkmate.cli import options
from checkmate.cli.commands.timeline import ASCII, BLOCKS, picture
from checkmate.cli.options import budget_of
from checkmate.cli.output import (
    Line,
    blocks_are_safe,
    exported,
    foreign_code,
    print_json,
    print_lines,
    print_table,
    say,
    terminal,
)
from checkmate.errors import InvalidScheduleError
from checkmate.files.serialize import read_graph, read_schedule, read_schedule_with_meta
from checkmate.model.graph import DFGraph
from checkmate.model.schedule import Schedule
from checkmate.plugins import EXPORTERS, exporter_for
from checkmate.problem.explanation import Explanation, explanation
from checkmate.problem.problem import keep_all_peak
from checkmate.problem.reading import Reading
from checkmate.simulate import Timeline
from checkmate.solving import api
from checkmate.text.printable import clipped, cost_text
from checkmate.units import format_bytes, parse_budget

__all__ = ["graph_facts", "print_graph", "show", "simulate", "timeline_facts"]

_ROWS = 5
_MINIMUM_TIME_S = 2.0
_COLOURS = {
    "forward": "blue",
    "backward": "green",
    "recompute": "yellow",
    "over": "red",
    "budget": "red",
    "peak": "bold",
    "axis": "dim",
}


@click.command(
    epilog=options.examples(
        "checkmate show graph.json",
        "checkmate show graph.json schedule.json",
        "checkmate show graph.json schedule.json --budget 60%",
        "checkmate show graph.json schedule.json -o report.html",
    )
)
@options.graph_file
@click.argument("schedule", type=options.FILE, required=False)
@click.option("--budget", help="Draw this budget; default: the budget in the file of the schedule.")
@options.output("Write a file instead; its suffix selects the exporter ('checkmate plugins' lists them).")
@click.option("--format", "exporter", metavar="NAME", help="The exporter for --output, whatever the suffix.")
@options.max_size
@options.as_json
def show(
    graph: options.Input,
    schedule: options.Input | None,
    budget: str | None,
    output: Path | None,
    exporter: str | None,
    max_size: int,
    as_json: bool,
) -> None:
    """Show GRAPH, or a SCHEDULE of it: memory over time, the peak, the recomputed ops.

    Both are files, or - for standard input. Without a SCHEDULE, everything is kept and computed once.

    Exit codes: 0 ok; 1 the schedule is not valid; 2 bad input.
    """
    options.not_the_graph(output, graph, schedule)
    if exporter is not None and output is None:
        raise click.BadParameter("say where to write: -o FILE.", param_hint="'--format'")
    whole = read_graph(graph, max_size=max_size)
    if schedule is None:
        steps, meta = Schedule.from_sequence(whole, range(whole.n_ops)), dict[str, Any]()
    else:
        steps, meta = read_schedule_with_meta(schedule, whole, max_size=max_size)
    limit = _limit(budget, meta, whole)
    timeline = judge(whole, steps)
    with foreign_code():
        facts = graph_facts(whole) if schedule is None and (as_json or output is None) else None
    answer = {"graph": facts, "timeline": timeline_facts(timeline, limit)} if as_json else None
    if output is not None:
        _export(timeline, output, limit, exporter)
    if answer is not None:
        print_json(answer)
    elif output is None:
        if facts is not None:
            print_graph(whole, facts)
        _print_timeline(timeline, limit)


def _export(timeline: Timeline, output: Path, budget: int | None, exporter: str | None) -> None:
    with foreign_code():
        name = exporter or exporter_for(output).name
        writer, owner = EXPORTERS.load(name), EXPORTERS.owner(name).owner
    with exported(output, f"exporter {name!r} of {owner}") as file, foreign_code():
        writer.write(timeline, file, budget=budget)
    say(f"{output}: written by the exporter {name!r}.")


def _limit(budget: str | None, meta: dict[str, Any], graph: DFGraph) -> int | None:
    """The budget to draw: the option, else the hint in the file of the schedule."""
    if budget is not None:
        return parse_budget(budget_of(budget), keep_all_peak(graph))
    hint = meta.get("budget")
    return hint if type(hint) is int and 0 < hint < 2**63 else None


def graph_facts(graph: DFGraph) -> dict[str, Any]:
    """Facts of a graph without solving, as plain values; sizes in bytes.

    ``minimum`` is the least budget for which a schedule was found within two seconds.
    """
    least, op = floor(graph)
    backward = sum(op.backward for op in graph.ops)
    largest = np.argsort(-graph.sizes, kind="stable")[:_ROWS].tolist()
    return {
        "name": graph.name,
        "digest": graph.digest,
        "ops": graph.n_ops,
        "forward_ops": graph.n_ops - backward,
        "backward_ops": backward,
        "once_only_ops": sum(not op.recomputable for op in graph.ops),
        "tensors": graph.n_tensors,
        "tensor_bytes": int(sum(t.size for t in graph.tensors)),
        "base_bytes": graph.base_size,
        "ideal_cost": graph.ideal_cost,
        "cost_unit": graph.cost_unit,
        "keep_all_peak": keep_all_peak(graph),
        "floor": least,
        "floor_op": None if op is None else {"op": op, "name": graph.ops[op].name},
        "minimum": api.minimum_budget(graph, time_limit=_MINIMUM_TIME_S).peak,
        "largest": [
            {"tensor": t, "name": graph.tensors[t].name, "size": graph.tensors[t].size} for t in largest
        ],
    }


def timeline_facts(timeline: Timeline, budget: int | None) -> dict[str, Any]:
    """The picture as plain values: one entry of ``memory`` and ``phases`` for each run."""
    reading, graph = Reading(timeline), timeline.graph
    run = reading.peak_run
    return {
        "peak": timeline.peak,
        "peak_step": timeline.peak_step,
        "peak_run": run,
        "peak_op": graph.ops[int(reading.ops[run])].name if run >= 0 else None,
        "budget": budget,
        "cost": timeline.cost,
        "overhead": timeline.overhead,
        "steps": len(timeline.schedule),
        "recomputes": timeline.recomputes,
        "memory": reading.memory.tolist(),
        "phases": ["fbr"[phase] for phase in reading.phases.tolist()],
        "held_at_peak": [holder._asdict() for holder in reading.holders(run)],
        "recomputed": explanation(reading).facts(),
    }


def print_graph(graph: DFGraph, facts: dict[str, Any]) -> None:
    """The facts as tables for people."""
    least, peak = facts["floor"], facts["keep_all_peak"]
    by = f"op {clipped(facts['floor_op']['name'])!r}" if facts["floor_op"] else "the graph outputs"
    once = f"; {facts['once_only_ops']} may run only once" if facts["once_only_ops"] else ""
    rows = [
        ("ops", f"{facts['ops']}: {facts['forward_ops']} forward, {facts['backward_ops']} backward{once}"),
        ("tensors", f"{facts['tensors']}, {format_bytes(facts['tensor_bytes'])} together"),
        ("always resident", f"{format_bytes(facts['base_bytes'])}: inputs and fixed"),
        ("cost", f"{cost_text(facts['ideal_cost'], graph.cost_unit)}, each op once"),
        ("peak", f"{format_bytes(peak)} without recomputation: 100% of a budget"),
        ("floor", f"{format_bytes(least)}{_share(least, peak)}: no schedule can need less; set by {by}"),
        ("least budget", _known_to_work(facts["minimum"], least, peak)),
    ]
    print_table(clipped(graph.name) or "graph", rows)
    largest = [(clipped(row["name"]), format_bytes(row["size"])) for row in facts["largest"]]
    print_table("largest tensors", largest)


def _known_to_work(minimum: int, least: int, peak: int) -> str:
    if least < minimum >= peak:
        return f"none below the peak found within {_MINIMUM_TIME_S:g} s; 'solve' tries harder"
    return f"at most {format_bytes(minimum)}{_share(minimum, peak)}: known to work"


def _share(size: int, whole: int) -> str:
    return f" ({size / whole:.1%})" if whole > 0 else ""


def _print_timeline(timeline: Timeline, budget: int | None) -> None:
    reading = Reading(timeline)
    glyphs = BLOCKS if blocks_are_safe() else ASCII
    curve = picture(reading.memory, reading.phases, width=terminal().width, budget=budget, glyphs=glyphs)
    print_lines(_headline(reading, budget))
    print_lines([(text, _COLOURS.get(what, "")) for text, what in line] for line in curve)
    if curve:
        letters = {"forward": "f forward", "backward": "b backward", "recompute": "r recomputed"}
        print_lines([[(f"{word}  ", _COLOURS[what]) for what, word in letters.items()]])
    held = reading.holders(reading.peak_run)
    rows = [(clipped(row.name), row.kind, format_bytes(row.size)) for row in held[:_ROWS]]
    if len(held) > _ROWS:
        rest = sum(row.size for row in held[_ROWS:])
        rows.append((f"{len(held) - _ROWS} more", "", format_bytes(rest)))
    print_table("tensors at the peak", rows)
    print_table(
        "recomputed",
        explanation(reading, budget).cells(_ROWS),
        header=("op", *Explanation.HEAD[1:]),
    )


def _headline(reading: Reading, budget: int | None) -> Iterator[Line]:
    """The peak in words, the budget and the cost."""
    timeline, run = reading.timeline, reading.peak_run
    words = f"peak {format_bytes(timeline.peak)}"
    if run >= 0:
        graph, op = timeline.graph, int(reading.ops[run])
        words += f" at step {timeline.peak_step} (run {run}): op {op} {clipped(graph.ops[op].name)!r}"
    yield [(words, "bold")]
    if budget is not None:
        over = timeline.peak > budget
        words = f"budget {format_bytes(budget)}: {'exceeded' if over else 'kept'}"
        yield [(words, "red" if over else "")]
    cost = cost_text(timeline.cost, timeline.graph.cost_unit)
    yield [(f"cost {cost}, overhead {timeline.overhead:.2%}, {timeline.recomputes} recomputations", "")]


@click.command(
    epilog=options.examples(
        "checkmate simulate graph.json schedule.json",
        "checkmate simulate graph.json schedule.json --json",
    )
)
@options.graph_file
@click.argument("schedule", type=options.FILE)
@options.max_size
@options.as_json
def simulate(graph: options.Input, schedule: options.Input, max_size: int, as_json: bool) -> None:
    """Judge SCHEDULE on GRAPH (files, or -): its validity, cost and peak.

    Exit codes: 0 valid; 1 not valid; 2 bad input, such as a schedule of another graph.
    """
    whole = read_graph(graph, max_size=max_size)
    steps = read_schedule(schedule, whole, max_size=max_size)
    facts: dict[str, object] = {"valid": True, "reason": None, "peak": None, "cost": None, "overhead": None}
    facts["steps"] = len(steps)
    try:
        timeline = judge(whole, steps)
    except InvalidScheduleError as error:
        facts |= {"valid": False, "reason": error.reason.name, "step": error.step, "subject": error.subject}
        if as_json:
            print_json(facts)
        raise
    facts |= {"peak": timeline.peak, "cost": timeline.cost, "overhead": timeline.overhead}
    if as_json:
        print_json(facts)
        return
    print_table(
        "valid",
        [
            ("peak", f"{format_bytes(timeline.peak)} ({timeline.peak} bytes), at step {timeline.peak_step}"),
            ("cost", f"{timeline.cost:.6g} {whole.cost_unit}"),
            ("overhead", f"{timeline.overhead:.2%}, {timeline.recomputes} recomputations"),
            ("steps", str(len(steps))),
        ],
    )

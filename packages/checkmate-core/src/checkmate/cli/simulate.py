"""``checkmate simulate``: the judge's verdict on a schedule."""

from __future__ import annotations

import click

from checkmate import simulate as judge
from checkmate.cli import options
from checkmate.cli.printing import print_json, print_table
from checkmate.errors import InvalidScheduleError
from checkmate.files.serialize import read_graph, read_schedule
from checkmate.units import format_bytes

__all__ = ["simulate"]


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

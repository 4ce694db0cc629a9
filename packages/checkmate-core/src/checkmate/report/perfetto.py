"""A judged schedule as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing.

The format is the JSON object form of the Trace Event Format: runs of ops are complete events ("X") on tracks
for forward, backward and recomputed; memory is a counter ("C") with one value for each step of the schedule,
from the judge. Its clock is in microseconds: costs in seconds are true to scale; costs in another unit are
scaled so that the whole schedule takes one second. ``otherData`` states the scale.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from checkmate.files.disk import replace_file
from checkmate.problem.pieces import WHOLE, Pieces
from checkmate.problem.reading import Phase, Reading
from checkmate.simulate import Timeline
from checkmate.text.printable import printable

__all__ = ["PerfettoTrace", "perfetto_trace"]

_MICROSECONDS = {"s": 1e6, "ms": 1e3, "us": 1.0, "µs": 1.0, "ns": 1e-3}
_TRACKS = {Phase.FORWARD: "forward", Phase.BACKWARD: "backward", Phase.RECOMPUTE: "recomputed"}
_PID = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PerfettoTrace:
    """The exporter of :func:`perfetto_trace`."""

    def write(
        self, timeline: Timeline, file: Path, *, budget: int | None = None, pieces: Pieces = WHOLE
    ) -> None:
        """Write the trace as JSON."""
        trace = perfetto_trace(timeline, budget=budget, pieces=pieces)
        text = json.dumps(trace, separators=(",", ":"), allow_nan=False) + "\n"
        replace_file(file, text.encode())


def perfetto_trace(
    timeline: Timeline, *, budget: int | None = None, pieces: Pieces = WHOLE
) -> dict[str, Any]:
    """The trace as plain values, ready for ``json.dumps``; events are in the order of their time.

    The budget, in bytes, is a counter and an argument of every op. Pieces of one op are runs of its name;
    their argument ``piece`` tells them apart.

    >>> from checkmate import DFGraph, Schedule, simulate
    >>> chain = DFGraph.from_nodes(cost=[2, 1], size=[4, 8], deps=[[], [0]], cost_unit="s")
    >>> trace = perfetto_trace(simulate(chain, Schedule.from_sequence(chain, [0, 1])))
    >>> [(e["name"], e["ts"], e["dur"]) for e in trace["traceEvents"] if e["ph"] == "X"]
    [('0', 0.0, 2000000.0), ('1', 2000000.0, 1000000.0)]
    """
    graph, reading = timeline.graph, Reading(timeline)
    scale, clock = _clock(reading)
    about = {
        "graph": printable(graph.name),
        "digest": graph.digest,
        "clock": clock,
        "peak": timeline.peak,
        "budget": budget,
        "cost": timeline.cost,
        "overhead": pieces.overhead(timeline),
    }
    events = [*_names(printable(graph.name) or "training step"), *_events(reading, scale, budget, pieces)]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def _clock(reading: Reading) -> tuple[float, str]:
    """Microseconds of the trace for one unit of cost (0: 1 µs for each run), and the scale in words."""
    unit, total = reading.timeline.graph.cost_unit, float(reading.starts[-1])
    if total == 0:
        return 0.0, "all costs are 0: each run is drawn as 1 µs"
    if unit in _MICROSECONDS:
        return _MICROSECONDS[unit], f"true to scale: costs are in {unit}"
    return 1e6 / total, f"not time: the whole schedule, {total:.6g} {printable(unit)}".rstrip() + ", is 1 s"


def _names(process: str) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "pid": _PID, "tid": 0, "ts": 0, "name": "process_name", "args": {"name": process}}
    for phase, name in _TRACKS.items():
        row = {"ph": "M", "pid": _PID, "tid": phase + 1, "ts": 0}
        yield row | {"name": "thread_name", "args": {"name": name}}
        yield row | {"name": "thread_sort_index", "args": {"sort_index": int(phase)}}


def _events(reading: Reading, scale: float, budget: int | None, pieces: Pieces) -> Iterator[dict[str, Any]]:
    timeline, n_runs = reading.timeline, len(reading.ops)
    edges = (reading.starts * scale if scale else np.arange(n_runs + 1.0)).tolist()
    memory, phases = timeline.memory.tolist(), reading.phases.tolist()
    limit = {} if budget is None else {"budget": budget}
    if limit:
        yield _counter("budget", 0.0, budget)
    run = 0
    for step, code in enumerate(timeline.schedule.codes.tolist()):
        if code >= 0:
            op, phase = timeline.graph.ops[code], phases[run]
            piece = pieces.piece(code)
            which = limit if piece is None else limit | {"piece": f"{piece.index + 1} of {piece.count}"}
            yield {
                "ph": "X",
                "pid": _PID,
                "tid": phase + 1,
                "ts": edges[run],
                "dur": edges[run + 1] - edges[run],
                "name": printable(op.name if piece is None else piece.name) or f"op {code}",
                "cat": _TRACKS[Phase(phase)],
                "args": {"op": code, "step": step, "memory": memory[step], "cost": op.cost} | which,
            }
            run += 1
        yield _counter("memory", edges[run - 1] if code >= 0 else edges[run], memory[step])
    if limit:
        yield _counter("budget", edges[-1], budget)


def _counter(name: str, ts: float, value: int | None) -> dict[str, Any]:
    return {"ph": "C", "pid": _PID, "tid": 0, "ts": ts, "name": name, "args": {"bytes": value}}
